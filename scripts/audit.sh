#!/usr/bin/env bash
# Compare what is installed in .venv with PyPI's list of known faults (pip-audit, in an environment of its own).
#
# Fails where a fault is known. Where the list cannot be reached it says so, and does not fail: then nothing was audited.
set -euo pipefail
cd "$(dirname "$0")/.."

AUDIT=.tools/audit
PIP_AUDIT='pip-audit>=2.9,<3'

[ -x $AUDIT/bin/pip-audit ] || {
    .venv/bin/python -m venv $AUDIT
    $AUDIT/bin/python -m pip --disable-pip-version-check install --quiet "$PIP_AUDIT"
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# A local version (`+cpu`) is on no list; the release that it was built from is.
.venv/bin/python -m pip --disable-pip-version-check freeze --exclude-editable | grep '==' | sed 's/+.*//' >"$folder/installed"
$AUDIT/bin/pip-audit --requirement "$folder/installed" --no-deps --disable-pip --progress-spinner off \
    --format json --output "$folder/found" 2>"$folder/said" || true
$AUDIT/bin/python - "$folder/found" <<'PYTHON' || { tail -3 "$folder/said" >&2; exit 1; }
import json
import pathlib
import sys

file = pathlib.Path(sys.argv[1])
listed = json.loads(file.read_text())["dependencies"] if file.exists() and file.stat().st_size else []
audited = [package for package in listed if "skip_reason" not in package]
if not audited:
    sys.exit(print("audit: the list of known faults cannot be reached; nothing was audited"))
for package in audited:
    for fault in package["vulns"]:
        fixed = ", ".join(fault["fix_versions"]) or "nothing yet"
        print(f"audit: {package['name']} {package['version']}: {fault['id']}, fixed in {fixed}")
faulty = sum(bool(package["vulns"]) for package in audited)
print(f"audit: {len(audited)} of {len(listed)} packages audited, {faulty} with known faults")
sys.exit(faulty > 0)
PYTHON
