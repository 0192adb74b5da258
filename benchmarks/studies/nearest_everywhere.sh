#!/usr/bin/env bash
# Measures how well `nearest` predicts each real environment; RECORDINGS contains an ENV.jsonl for each.
#     bash benchmarks/studies/nearest_everywhere.sh RECORDINGS OUT
set -eu
for env in coin alfworld webshop scienceworld bfcl; do
  echo "## \`$env\`"; echo
  python benchmarks/studies/ablation.py $env --trajectories $1/$env.jsonl --setting nearest --setting "nearest -k 0" --out $2; echo
done
