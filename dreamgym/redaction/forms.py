"""Finds secrets by their form: with the rules of Kingfisher, and by published prefixes that need no context.

Kingfisher (https://github.com/mongodb/kingfisher, Apache-2.0) finds many forms only behind their vendor's name, as in
source code. The answer of a tool often contains the bare value, so a published prefix is enough here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from dreamgym.errors import MissingPackage
from dreamgym.redaction.find import Find
from dreamgym.redaction.linear import compiled

if TYPE_CHECKING:
    from kingfisher_sdk import Scanner

_T, _W = "[0-9A-Za-z]", r"[0-9A-Za-z_-]"
PREFIXED = (
    # models and AI services: the key pages of OpenAI, Anthropic, Groq, xAI, Perplexity, Replicate, Fireworks, Cerebras,
    # NVIDIA, ElevenLabs, LangSmith, Langfuse, Tavily, Pinecone, Voyage, Jina, Together, Hugging Face, Amazon Bedrock
    rf"sk-{_W}{{20,}}|gsk_{_T}{{20,}}|xai-{_T}{{20,}}|pplx-{_T}{{20,}}|r8_{_T}{{20,}}|fw_{_T}{{20,}}|csk-{_T}{{20,}}",
    rf"nvapi-{_W}{{20,}}|sk_{_T}{{20,}}|lsv2_(?:pt|sk)_{_W}{{20,}}|[ps]k-lf-{_W}{{20,}}|tvly-{_W}{{16,}}",
    rf"pcsk_{_W}{{20,}}|(?:pa|al)-{_W}{{32,}}|jina_{_T}{{20,}}|tgp_v1_{_W}{{20,}}|hf_{_T}{{20,}}|api_org_{_T}{{20,}}",
    r"ABSK[0-9A-Za-z+/]{40,}={0,2}|bedrock-api-key-[0-9A-Za-z+/=]{20,}",
    # clouds: Amazon, Google, Azure, Alibaba, DigitalOcean, Cloudflare, Heroku, Netlify, Fly, Render, Vercel
    r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{12,}|AIza[0-9A-Za-z_-]{30,}|ya29\.[0-9A-Za-z_-]{20,}",
    rf"GOCSPX-{_W}{{20,}}|1//0{_W}{{20,}}|{_W}{{3}}[0-9]Q~[0-9A-Za-z_~.-]{{30,}}|LTAI{_T}{{12,}}",
    rf"do[opr]_v1_{_T}{{30,}}|v1\.0-[0-9a-f]{{20,}}-[0-9a-f]{{40,}}|HRKU-{_W}{{30,}}|nf[pcoub]_{_T}{{20,}}",
    rf"FlyV1 fm[0-9]_[0-9A-Za-z+/=,_-]{{20,}}|fm[12]_[0-9A-Za-z+/=]{{40,}}|rnd_{_T}{{20,}}|vc[pkair]_{_W}{{20,}}",
    # code and packages: GitHub, GitLab, Bitbucket, Atlassian, Azure DevOps, npm, PyPI, RubyGems, crates.io, Docker
    rf"gh[opsur]_{_T}{{20,}}|github_pat_\w{{20,}}|gl(?:pat|dt|ptt|rt|soat|ft|imt|agent|oas|cbt)-[0-9A-Za-z_.-]{{18,}}",
    rf"ATBB{_T}{{20,}}|ATATT3{_W}{{20,}}={{0,1}}{_W}*|ATCTT3{_W}{{20,}}|{_T}{{76}}AZDO{_T}{{4}}|npm_{_T}{{30,}}|pypi-{_W}{{40,}}",
    rf"rubygems_[0-9a-f]{{30,}}|cio{_T}{{32}}|dckr_[a-z]{{3}}_{_W}{{20,}}|dapi[0-9a-f]{{32}}(?:-[0-9])?|AKCp{_T}{{10,}}|AP[0-9A-F]{_T}{{8,}}",
    # databases and infrastructure: Supabase, PlanetScale, Neon, HashiCorp, Doppler, Pulumi, 1Password, Tailscale, age
    rf"sbp_{_W}{{20,}}|sb_secret_{_W}{{20,}}|pscale_(?:tkn|pw|oauth)_{_W}{{20,}}|napi_{_T}{{20,}}|hv[sbr]\.{_W}{{20,}}",
    rf"{_T}{{14}}\.atlasv1\.{_W}{{40,}}|dp\.(?:pt|st|ct|sa|scim|audit)\.[0-9A-Za-z_.-]{{20,}}|pul-[0-9a-f]{{30,}}",
    rf"ops_eyJ{_W}{{20,}}|tskey-{_W}{{16,}}|AGE-SECRET-KEY-1[0-9A-Z]{{20,}}",
    # messages: Slack, Discord, Telegram, SendGrid, Mailgun, Mailchimp, Resend, Twilio
    rf"xox[abceoprs]-{_W}{{10,}}|xox[de]\.?{_W}{{20,}}|xapp-{_W}{{20,}}|SG\.{_W}{{16,}}\.{_W}{{16,}}|key-[0-9a-f]{{32}}",
    rf"[MNO]{_W}{{23,25}}\.{_W}{{6}}\.{_W}{{27,}}|[0-9]{{8,10}}:AA{_W}{{33}}|[0-9a-f]{{32}}-us[0-9]{{1,2}}|re_(?:{_T}{{6,12}}_)?{_T}{{16,}}",
    r"(?:AC|SK)[0-9a-f]{32}",
    # payment and shops: Stripe, Square, Shopify, Braintree, Plaid, PayPal
    rf"[rsp]k_(?:live|test|prod)_{_T}{{10,}}|whsec_[0-9A-Za-z+/=]{{20,}}|sq0[a-z]{{3}}-{_W}{{20,}}|EAAA{_W}{{40,}}",
    r"shp(?:at|ca|pa|ss)_[0-9A-Za-z]{20,}|access_token\$(?:production|sandbox)\$[0-9a-z]{16}\$[0-9a-f]{32}",
    r"access-(?:production|development|sandbox)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    # work and monitoring: Linear, Notion, Airtable, Figma, Postman, Grafana, New Relic, Sentry, HubSpot, Dynatrace,
    # ClickUp
    rf"lin_(?:api|oauth)_{_T}{{20,}}|ntn_{_T}{{20,}}|secret_{_T}{{40,}}|pat{_T}{{14}}\.[0-9a-f]{{40,}}|fig[dou]_{_W}{{20,}}",
    rf"PMAK-{_W}{{20,}}|gl(?:sa|c)_[0-9A-Za-z_+/=-]{{20,}}|NR(?:AK|JS|RA|II)-{_W}{{16,}}|sntry[su]_[0-9A-Za-z_+/=-]{{20,}}",
    rf"pat-(?:na|eu|ap)[0-9]-{_W}{{30,}}|dt0[a-z]{{1,2}}[0-9]{{2}}\.{_T}{{20,}}\.{_T}{{40,}}|pk_[0-9]{{6,9}}_[0-9A-Z]{{20,}}",
)
"""RE2 patterns of whole secrets, in the forms that their vendors publish."""
URLS = (
    r"hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/([0-9A-Za-z+/]{20,})",
    rf"discord(?:app)?\.com/api/(?:v[0-9]+/)?webhooks/[0-9]+/({_W}{{20,}})",
    r"(?:webhook\.office|logic\.azure)\.com/(?:webhookb2/)?([0-9A-Za-z@/_-]{40,})",
    r"[?&;](?:sig|signature|x-amz-signature|x-goog-signature)=([0-9A-Za-z%+/=_-]{16,})",
    r"api\.telegram\.org/bot([0-9]+:[0-9A-Za-z_-]{20,})",
)
"""RE2 patterns of URLs that contain a secret."""
_MIXED = re.compile(r"[0-9]|[a-z][A-Z]|[A-Z][a-z]")
"""A digit or a change of case. A long identifier without either only begins like a secret."""
NO_SECRETS = ("client-id", "-access-id", "api-id", "new-relic-user-api-id", "generic-credential-uri")
"""Endings of the names of Kingfisher's rules that are ignored: they find no secret, or one that other rules here
find."""


def prefixed(text: str) -> Iterator[Find]:
    """Find secrets with a published prefix, and the secret parts of well-known URLs."""
    for match in _pattern().finditer(text):
        group = match.lastindex or 0
        if _MIXED.search(match[group]):
            yield Find(match.start(group), match.end(group), "token")


def web_tokens(text: str) -> Iterator[Find]:
    """Find JSON Web Tokens, of any length: those with the groups of a user have many thousand characters."""
    if "eyJ" in text:
        for match in _web_token().finditer(text):
            yield Find(match.start(1), match.end(1), "token")


def kingfisher(text: str) -> Iterator[Find]:
    """Find secrets by the rules of Kingfisher; most of them need the name of the vendor nearby."""
    encoded = text.encode("utf-8", "replace")
    at = place = 0
    for found in sorted(_scanner().scan(encoded), key=lambda found: int(found.location["start_offset"])):
        if not found.visible or found.rule_id.endswith(NO_SECRETS):
            continue
        start = int(found.location["start_offset"])
        place += len(encoded[at:start].decode("utf-8", "ignore"))
        at = start
        here = text.find(found.secret, place, place + 2 * len(found.secret) + 1024)
        if found.secret and here >= 0:
            name = found.rule_id.partition(".")[2].partition(".")[0] or "token"
            yield Find(here, here + len(found.secret), name, is_told=True)


def prepare() -> None:
    """Load Kingfisher's rules. This takes 0.3 s; the first time 5 s, after which Kingfisher keeps them compiled."""
    _pattern()
    _scanner()


@cache
def _web_token() -> Any:
    return compiled(rf"(?:^|[^0-9A-Za-z_])(eyJ{_W}{{8,}}\.{_W}{{8,}}(?:\.{_W}+){{0,3}})")


@cache
def _pattern() -> Any:
    return compiled(rf"(?:^|[^0-9A-Za-z_])({'|'.join(PREFIXED)})|(?i:{'|'.join(URLS)})")


@cache
def _scanner() -> Scanner:
    try:
        from kingfisher_sdk import Rules, Scanner
    except ImportError as error:
        raise MissingPackage("redaction", "server") from error
    return Scanner(Rules(), base64=False)
