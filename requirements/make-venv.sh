#!/bin/sh
# Make a virtual environment with the first Python that can: at least 3.11, with venv. Say what is missing if none can.
old=""; bare=""
for name in python3 python3.13 python3.12 python3.11 python; do
    "$name" -c "" 2>/dev/null || continue
    if ! "$name" -c "import sys; sys.exit(sys.version_info < (3, 11))"; then
        old="$("$name" --version 2>&1) ($name)"
    elif ! "$name" -c "import ensurepip, venv" 2>/dev/null; then
        bare="$name"
    else
        exec "$name" -m venv "$1"
    fi
done
if [ -n "$bare" ]; then
    echo "$bare has no venv module. On Debian or Ubuntu: apt-get install python3-venv; then run make again." >&2
else
    echo "exo_celery needs Python 3.11 or newer; found: ${old:-none}. Install one (python3.11 … python3.13) and run make again." >&2
fi
exit 1
