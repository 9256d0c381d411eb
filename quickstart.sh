#!/bin/bash
# From a fresh clone on Debian 12 to something to look at, in one command:
#
#   ./quickstart.sh demo    replay an incident without and with the module
#   ./quickstart.sh check   build in every way and run every test
#   ./quickstart.sh stop    stop the server that demo left running
#   ./quickstart.sh bench-peers [OPTION...]
#                           measure the guard beside its peers (18 min); the
#                           options are at the top of t/bench/peers/peers.pl
#
# Installs missing Debian packages (as root) but starts none of their services.
# Everything else it writes is in ./build and in temporary folders; the source
# tree gets only what autoreconf generates.
set -eu
cd "$(dirname "$0")"

packages=(
    # to build
    autoconf automake libtool make pkg-config gcc libc6-dev
    apache2-dev libapr1-dev libaprutil1-dev libmariadb-dev
    # to test
    check clang valgrind perl openssl util-linux
    # to run: the servers, their clients, and load
    apache2-bin libapache2-mod-php8.2 php8.2-mysql php8.2-curl php8.2-fpm
    mariadb-server mariadb-client nghttp2-client wrk curl
)
# Only to be compared with.
peers=(libapache2-mod-qos haproxy)
state=build/demo/left-running
passed=0

missing_packages()
{
    local package
    for package in "${packages[@]}"; do
        dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null |
            grep -q '^ii' || echo "$package"
    done
}

install_packages()
{
    local missing made_policy=
    mapfile -t missing < <(missing_packages)
    if [ ${#missing[@]} -eq 0 ]; then
        return
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "These packages are missing; install them or run this as root:" >&2
        echo "  ${missing[*]}" >&2
        exit 1
    fi
    # Debian starts a service when it installs one, unless this file objects.
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
        chmod 755 /usr/sbin/policy-rc.d
        made_policy=1
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    step packages apt_install "${missing[@]}"
    if [ -n "$made_policy" ]; then
        rm -f /usr/sbin/policy-rc.d
        trap - EXIT
    fi
}

apt_install()
{
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install -y --no-install-recommends "$@"
}

# step NAME COMMAND...: runs it with its output in a log, says how long it took,
# and ends everything when it fails.
step()
{
    local name=$1 log="build/logs/${1//[^a-z0-9]/-}.log" begun=$SECONDS status
    shift
    mkdir -p build/logs
    printf '%-32s ' "$name"
    # Not the condition of an if, in which set -e would be off.
    set +e
    (set -e; "$@") >"$log" 2>&1 </dev/null
    status=$?
    set -e
    if [ "$status" -eq 0 ]; then
        printf 'ok %5d s\n' $((SECONDS - begun))
        passed=$((passed + 1))
        return
    fi
    printf 'FAILED %5d s\n\n' $((SECONDS - begun))
    tail -n 40 "$log"
    printf '\nThe whole log: %s\n\n%d passed, 1 failed\n' "$log" "$passed"
    exit 1
}

generate()
{
    if [ -e config.status ]; then
        echo "This tree is configured in place, which rules out builds beside" \
            "it: run \"make distclean\" first." >&2
        exit 1
    fi
    step autoreconf autoreconf -fi
}

# configure_in FOLDER [ARGUMENT...]
configure_in()
{
    local folder=build/$1
    shift
    mkdir -p "$folder"
    cd "$folder"
    ../../configure --enable-werror "$@"
}

# make_in FOLDER ARGUMENT...
make_in()
{
    local folder=build/$1
    shift
    make -C "$folder" -j"$(nproc)" "$@"
}

demo()
{
    install_packages
    stop
    generate
    step 'configure' configure_in demo
    step 'make' make_in demo
    DBGUARD_BUILDDIR=$PWD/build/demo t/demo/replay --leave "$state"
}

bench_peers()
{
    packages+=("${peers[@]}")
    install_packages
    generate
    step 'configure' configure_in bench CFLAGS=-O2
    step 'make' make_in bench all t/bench/peers/openloop
    DBGUARD_BUILDDIR=$PWD/build/bench t/bench/peers/peers.pl "$@"
}

check()
{
    install_packages
    rm -rf build/gcc build/clang build/asan
    generate

    step 'gcc configure' configure_in gcc CC=gcc
    step 'gcc make' make_in gcc
    step 'gcc make check' make_in gcc check

    step 'clang configure' configure_in clang CC=clang
    step 'clang make' make_in clang
    step 'clang unit tests' make_in clang check-unit

    step 'sanitizers configure' configure_in asan CC=gcc --enable-sanitizers
    step 'sanitizers make' make_in asan
    step 'sanitizers unit tests' make_in asan check-unit
    # httpd and PHP leave much to be freed by their exit.
    step 'sanitizers integration tests' \
        env ASAN_OPTIONS=detect_leaks=0 make -C build/asan check-integration

    step 'valgrind unit tests' make_in gcc check-valgrind
    # The integration tests have run: in the distribution only the unit tests.
    step 'distcheck' make_in gcc distcheck PROVE=:

    printf '\n%d passed, 0 failed\n' "$passed"
}

stop()
{
    if [ -e "$state" ]; then
        t/demo/replay --stop "$state"
        echo 'The server that an earlier demo left has been stopped.'
    fi
}

case "${1-}" in
demo | check | stop) "$1" ;;
bench-peers) shift; bench_peers "$@" ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" ;;
esac
