#!/usr/bin/env bash
# Tries the commit that is checked out on a bare system: a folder that debootstrap fills from the package registry, and in it an
# ordinary user, who may use sudo and has none of this machine's settings, with a clone.
#     tools/portability.sh [OPTION]... SUITE [NAME=VALUE]... [COMMAND]...
#     tools/portability.sh bookworm
#     tools/portability.sh --cache ~/.cache/ccache-trixie trixie JOBS=2 './dev build' './dev test --suite sim'
# SUITE              of Debian: bookworm, trixie
# NAME=VALUE         goes into the environment of the commands
# COMMAND            a line for bash, in the clone; without one: the two commands of README.md
# --mirror URL       of the package registry; default: where this machine's apt gets Debian's packages
# --cache FOLDER     ccache's, kept from run to run, made if it is missing; the user in the root has the number of the folder's owner
# --wheels FOLDER    where pip looks first: its PIP_FIND_LINKS
# --certificates FILE  those that this machine trusts, for a registry behind a proxy: pip's PIP_CERT
# --carry FOLDER     copied into the clone: dist, say. May be given several times
# --root FOLDER      the root, kept afterwards; one that is there already is used as it is. Default: a temporary folder
# Needs root's rights, debootstrap, git and unshare. Exits with the status of the first command that fails.
set -euo pipefail

usage() { sed -n '2,/^# Needs/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

fail() {
  printf 'portability: %s\n' "$*" >&2
  exit 2
}

say() { printf '== portability: %s\n' "$*"; }

# The mirror of Debian's main archive, of which apt has lists.
mirror_of_apt() {
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' 2>/dev/null | sort -u | head -n 1
}

# Fills $root, unless it is filled.
bootstrap() {
  [[ -x $root/usr/bin/sudo ]] && return 0
  say "debootstrap $suite"
  local log
  log=$(mktemp)
  PATH=$PATH:/usr/sbin:/sbin debootstrap --variant=minbase --include=ca-certificates,git,sudo "$suite" "$root" "$mirror" \
    >"$log" 2>&1 || { tail -n 20 "$log"; return 1; }
  rm -f "$log"
  echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/portability" # twice as fast, and nothing is lost with a root
}

# Mounts what programs expect, and what the options name. In a namespace of mounts of its own, with which they end: none is left
# behind however this ends, and the root may be removed without harm to what was mounted.
mount_all() {
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount --rbind /sys "$root/sys"
  if [[ -n $cache ]]; then
    mkdir -p "$root/ccache"
    mount --bind "$cache" "$root/ccache"
  fi
  if [[ -n $wheels ]]; then
    mkdir -p "$root/wheels"
    mount --bind -o ro "$wheels" "$root/wheels"
  fi
}

# The user `newcomer`, or root where the cache is root's, and the clone in $home.
make_user() {
  user=newcomer home=/home/newcomer
  local uid=1000 folder
  [[ -z $cache ]] || uid=$(stat -c %u "$cache")
  if ((uid == 0)); then
    user=root home=/root
  elif ! chroot "$root" id newcomer >/dev/null 2>&1; then
    chroot "$root" useradd --uid "$uid" --create-home --shell /bin/bash newcomer
    echo 'newcomer ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/newcomer"
  fi
  cp -L /etc/resolv.conf /etc/hosts "$root/etc"
  [[ -z $certificates ]] || cp -L "$certificates" "$root/etc/certificates.crt"
  rm -rf "${root:?}$home/rankloom"
  git clone --quiet --depth 1 "file://$checkout" "$root$home/rankloom"
  for folder in "${carried[@]}"; do
    cp -r "$folder" "$root$home/rankloom"
  done
  chroot "$root" chown -R "$user:" "$home/rankloom"
}

# Runs each command, and says how long it took.
run_commands() {
  local words line status start all=("${environment[@]}")
  [[ -z $cache ]] || all+=(CCACHE_DIR=/ccache)
  [[ -z $wheels ]] || all+=(PIP_FIND_LINKS=/wheels)
  [[ -z $certificates ]] || all+=(PIP_CERT=/etc/certificates.crt)
  words=$( ((${#all[@]})) && printf 'export %q\n' "${all[@]}" || true)
  for line in "${commands[@]}"; do
    say "$suite: $line"
    start=$SECONDS status=0
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" su - "$user" -c "$words"$'\n'"cd rankloom && $line" </dev/null || status=$?
    say "$suite: $line: status $status after $((SECONDS - start)) s"
    ((status == 0)) || return "$status"
  done
}

in_namespace() {
  bootstrap
  mount_all
  make_user
  run_commands
}

mirror='' cache='' wheels='' certificates='' root='' suite='' carried=() environment=() commands=()
while (($#)) && [[ $1 == -* ]]; do
  case $1 in
    --help) usage; exit ;;
    --mirror | --cache | --wheels | --certificates | --root | --carry) (($# > 1)) || fail "$1 wants a value" ;;
    *) fail "no option $1; see --help" ;;
  esac
  case $1 in
    --mirror) mirror=$2 ;;
    --cache)
      [[ -d $2 ]] || install -d ${SUDO_UID:+-o "$SUDO_UID"} "$2"
      cache=$(realpath -e "$2")
      ;;
    --wheels) wheels=$(realpath -e "$2") ;;
    --certificates) certificates=$(realpath -e "$2") ;;
    --root) root=$(realpath -m "$2") ;;
    --carry) carried+=("$(realpath -e "$2")") ;;
  esac
  shift 2
done
(($#)) || fail "which suite? see --help"
suite=$1
shift
while (($#)) && [[ $1 =~ ^[A-Za-z_][A-Za-z_0-9]*= ]]; do
  environment+=("$1")
  shift
done
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
commands=("$@")
((${#commands[@]})) || mapfile -t commands < <(sed -n '/^## Two commands/,/^## [^T]/s/^    \(\.\/dev [a-z]*\).*/\1/p' "$checkout/README.md")
((${#commands[@]})) || fail "README.md has no two commands"
((EUID == 0)) || fail "needs root's rights, for debootstrap and mounts"
git ls-remote "file://$checkout" HEAD >/dev/null || fail "git refuses to clone $checkout, see above: use sudo, or allow \
it by git config --global --add safe.directory '$checkout/.git'"
[[ -n $mirror ]] || mirror=$(mirror_of_apt)
[[ -n $mirror ]] || fail "apt here has no lists of Debian's: --mirror URL says where its packages are"
if [[ -z $root ]]; then
  root=$(mktemp -d)
  trap 'rm -rf --one-file-system "$root"' EXIT
  chmod 755 "$root"
fi
mkdir -p "$root"

unshare --mount --pid --fork --kill-child --propagation private bash -euo pipefail -c "
  $(declare -p root suite mirror cache wheels certificates checkout carried environment commands)
  $(declare -f say bootstrap mount_all make_user run_commands in_namespace)
  in_namespace"
say "$suite: all passed"
