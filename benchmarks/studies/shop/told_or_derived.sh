#!/usr/bin/env bash
# Compares three recordings of one shop: with the state that the server shows, with facts derived from its answers, and
# without a state.
#
#     bash benchmarks/studies/shop/told_or_derived.sh runs/shop-states
set -euo pipefail
cd "$(dirname "$0")/../../.."
out=$1
python benchmarks/studies/shop/record.py --direct --tasks 0 --sessions 60 --seed 1 --out "$out/told" >&2
python benchmarks/studies/shop/record.py --quiet --tasks 0 --sessions 60 --seed 1 --out "$out/quiet" >&2
cp -r "$out/quiet" "$out/derived"
dreamgym seed "$out/derived" "$out/derived" --derive-state >&2
for state in told derived quiet; do
    echo "## $state"
    echo
    python benchmarks/studies/ablation.py "$out/$state" --limit 200 --setting nearest --setting "nearest without state" --out "$out/$state-report"
    echo
done
