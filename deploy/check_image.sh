#!/bin/sh
# Build deploy/Dockerfile and try the image, on a machine without a container engine or a registry of images.
#
#     sudo deploy/check_image.sh                              # on Debian, with buildah and debootstrap installed
#     sudo BASE_IMAGE=python:3.12-slim deploy/check_image.sh  # where a registry can be reached
#
# Without BASE_IMAGE, a minimal Debian from this machine's own package mirror is the base; it is kept in the cache
# folder (about 90 MB). Everything else is removed at the end. It takes a few minutes.
# What pip is told on this machine (index, certificates, local folders) holds inside the build, too.
set -eu

cd "$(dirname "$0")/.."
cache="${XDG_CACHE_HOME:-$HOME/.cache}/kvgate/image-check"
work="$(mktemp -d)"
mounted=
sim=
gate=

say() { printf '%s\n' "-- $*"; }
fail() { printf '%s\n' "FAILED: $*" >&2; exit 1; }
images() { buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"; }

leave() {
    status=$?
    set +e # each of these is to be tried, whatever became of the others
    for pid in $gate $sim; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; done
    # Not removed while anything is mounted below: /dev of this machine is.
    [ -z "$mounted" ] || umount -R "$mounted" || exit 1
    rm -rf --one-file-system "$work"
    exit "$status"
}
trap leave EXIT
trap 'exit 130' INT TERM

[ "$(id -u)" -eq 0 ] || fail "needs root, for debootstrap, and to enter the image with a read-only root"
for tool in buildah debootstrap; do
    command -v "$tool" >/dev/null || fail "$tool is missing: apt-get install --no-install-recommends buildah debootstrap"
done

# The base.

pull=--pull
if [ -z "${BASE_IMAGE:-}" ]; then
    pull=--pull-never
    base="$cache/base.tar"
    if [ ! -s "$base" ]; then
        say "making a base image"
        # shellcheck source=/dev/null
        suite="$(. /etc/os-release && echo "$VERSION_CODENAME")"
        mirror="$(apt-get indextargets --format '$(SITE)' "Codename: $suite" | head -n 1)"
        debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
            "$suite" "$work/base" "$mirror" >"$work/log" 2>&1 || { tail -n 20 "$work/log"; fail "debootstrap"; }
        rm -rf "$work/base/var/cache/apt/archives" "$work/base/var/lib/apt/lists"
        mkdir -p "$cache"
        tar -C "$work/base" -cf "$base.new" . && mv "$base.new" "$base"
        rm -rf "$work/base"
    fi
    container="$(images from scratch)"
    images add -q "$container" "$base" / >/dev/null
    BASE_IMAGE=localhost/kvgate-base:local
    images commit -q "$container" "$BASE_IMAGE" >/dev/null
    images rm "$container" >/dev/null
fi

# What pip is told here: its settings as one file, and the local paths that they name. A local index (…/simple) links to
# files beside it.

python3 -m pip config list | sed -n "s/^[^.]*\.\([a-z-]*\)='\(.*\)'\$/\1 = \2/p; s/^:env:\.\([a-z-]*\)='\(.*\)'\$/\1 = \2/p" |
    awk -F ' = ' 'BEGIN { print "[global]" } { said[$1] = $0 } END { for (key in said) print said[key] }' >"$work/pip.conf"
set --
for path in $(tr ' ' '\n' <"$work/pip.conf" | sed -n 's|^file://||; s|/simple/*$||; /^\//p' | sort -u); do
    [ ! -e "$path" ] || set -- "$@" --volume "$path:$path:ro"
done

say "building"
images bud --isolation chroot --format docker --build-arg "BASE_IMAGE=$BASE_IMAGE" "$pull" \
    --secret "id=pip_conf,src=$work/pip.conf" "$@" --file deploy/Dockerfile --tag kvgate . >"$work/log" 2>&1 ||
    { tail -n 40 "$work/log"; fail "the build"; }

# What it says of itself.

images inspect --type image kvgate >"$work/config.json"
python3 - "$work/config.json" <<'PYTHON' || fail "the image's settings"
import json, sys

said = json.load(open(sys.argv[1]))["Docker"]["config"]
user, *group = said["User"].split(":")
assert user.isdecimal() and int(user) > 0, f"the user is {said['User']!r}, not a number above 0"
assert said["Entrypoint"] == ["/opt/kvgate/bin/kvgate"], said["Entrypoint"]
assert said["Healthcheck"]["Test"][0] == "CMD", said["Healthcheck"]
with open(sys.argv[1] + ".healthcheck", "w") as out:
    out.write("\n".join(said["Healthcheck"]["Test"][1:]))
PYTHON

# What it does: as its user, on a root that nobody can write, between an engine and this machine.

container="$(images from --pull-never kvgate)"
root="$(images mount "$container")"
mount --bind "$root" "$root"
mounted="$root"
mount --bind /dev "$root/dev"
mount -o remount,ro,bind "$root"
ports="$(python3 -c '
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(one.getsockname()[1] for one in held))')"
engine="${ports%% *}"
admin="${ports##* }"
port="${ports#* }"
port="${port%% *}"
# A prefix and not a function: in the background it then is the process itself, which a signal reaches.
inside="chroot --userspec=10001:10001 $root /usr/bin/env -i PATH=/opt/kvgate/bin:/usr/bin:/bin
    PYTHONDONTWRITEBYTECODE=1 KVGATE_ADMIN_PORT=$admin"
# shellcheck disable=SC2086
inside() { $inside "$@"; }

say "trying it"
inside sh -c 'true >/opt/kvgate/written' 2>/dev/null && fail "the root can be written"
inside kvgate version
inside python -c 'import pip' 2>/dev/null && fail "pip is in the image"
healthy() { inside python -c "$(sed 1,2d "$work/config.json.healthcheck")" 2>/dev/null; }
healthy && fail "healthy before it runs"
# shellcheck disable=SC2086
$inside kvgate sim-engine --blocks 121 --block-size 32 --max-model-len 2048 --max-num-seqs 256 \
    --port "$engine" --model llm --profile fast >"$work/sim.log" 2>&1 &
sim=$!
# shellcheck disable=SC2086
$inside kvgate serve --backend "http://127.0.0.1:$engine" --port "$port" >"$work/gate.log" 2>&1 &
gate=$!

ready() {
    python3 - "$port" "$admin" <<'PYTHON'
import json, sys, urllib.request as r

port, admin = sys.argv[1:]
open_ = r.build_opener(r.ProxyHandler({})).open
open_(f"http://127.0.0.1:{admin}/readyz", timeout=2)
body = json.dumps({"model": "llm", "prompt": "hello", "max_tokens": 4}).encode()
asked = r.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"content-type": "application/json"})
print("answered:", json.load(open_(asked, timeout=10))["usage"])
PYTHON
}
tries=60
until ready 2>/dev/null; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] && kill -0 "$gate" && kill -0 "$sim" || { cat "$work/sim.log" "$work/gate.log"; fail "no answer"; }
    sleep 1
done
healthy || fail "not healthy while it runs"
kill "$gate"
wait "$gate" || fail "SIGTERM: exit code $?"
gate=
say "size: $(du -sm "$root/opt/kvgate" | cut -f1) MB beside the base image"
say "the image is well"
