{{- define "dreamgym.name" -}}
{{- if contains "dreamgym" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-dreamgym{{ end -}}
{{- end }}

{{- define "dreamgym.selector" -}}
app.kubernetes.io/name: dreamgym
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dreamgym.labels" -}}
{{ include "dreamgym.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* A probe of one route. A probe's default host is the pod's address, and servers refuse host names that they do not know. */ -}}
{{- define "dreamgym.probe" -}}
httpGet:
  path: {{ . }}
  port: http
  httpHeaders:
    - name: Host
      value: localhost
timeoutSeconds: 5
{{- end }}
