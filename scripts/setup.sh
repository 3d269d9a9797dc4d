# What scripts/quickstart and scripts/test share: Debian's packages and a virtual environment. Sourced, from the top.
# Running it again costs nothing where everything is there.

PACKAGES="fuse3 libfuse3-dev pkg-config gcc python3-dev python3-venv"
CHECK_PACKAGES="libglib2.0-bin"  # for libcachesim, which is linked with GLib and does not bring it; so named in each Debian

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# install_packages NAME...: install those of Debian's packages that are missing.
install_packages() {
    missing=""
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing="$missing $package"
    done
    [ -z "$missing" ] && return
    echo "installing$missing"
    as_root apt-get -o Acquire::Retries=3 update -qq
    # shellcheck disable=SC2086 # a list of names
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends $missing >/dev/null
}

# make_venv EXTRA: .venv with mummufs in it, installed anew when pyproject.toml or the wish has changed.
make_venv() {
    wanted="$(cksum <pyproject.toml) $1 $PWD"
    [ "$(cat .venv/mummufs-installed 2>/dev/null)" = "$wanted" ] && return
    echo "installing mummufs in .venv"
    [ -x .venv/bin/python ] || /usr/bin/python3 -m venv .venv
    .venv/bin/pip install --quiet --retries 5 --disable-pip-version-check -e ".$1"
    echo "$wanted" >.venv/mummufs-installed
}
