#!/usr/bin/perl
# The guard beside its peers: three kinds of trouble on a private Apache with
# 192 workers and a private MariaDB with 24 connections, once for each peer, as
# tables.
#
#     make bench-peers    or: perl -It/lib t/bench/peers/peers.pl [OPTION...]
#
#     --scenario A,B,C    which; the idle phase always comes first
#     --row NAME,...      which peers: alone, workers, qos, haproxy,
#                         haproxy-first, guard
#     --seconds N         length of A and B, default 50
#     --clients N         of the herd in C, default 2000
#     --json FILE         writes all figures
#     --logs FOLDER       leaves schedules and logs there
#
# All of it takes about 18 minutes. Prints, never judges the peers.
# docs/comparison.md says what is compared and how to read it.
#
# Invariants:
#  - All load is on the loopback, known beforehand, and over when the time is.
#  - Nothing runs but what belongs to the row that is measured.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/../../lib", "$FindBin::Bin/lib";
use File::Copy qw(copy);
use File::Path qw(make_path);
use Getopt::Long;
use JSON::PP;
use POSIX qw(ceil strftime uname);
use Time::HiRes qw(time);
use DBGuard::Stack qw(slurp spew builddir);
use Peers::Figures;
use Peers::Load qw(schedule);
use Peers::Report;
use Peers::Rows qw(@rows);

use constant {
    IDLE => 20, HERD => 20,     # seconds of these two
    PATIENCE => 15,             # of a client: openloop's
    GRACE => 45,                # and for who is to come back
};

my @scenarios = qw(idle A B C);
# What the herd goes by: openloop's words, and ours.
my %modes = (whole => 'Retry-After', exact => 'DBGuard-Retry-After',
    fixed => 'comes back after 1 s');

my %option = (scenario => 'A,B,C', row => join(',', map { $_->{name} } @rows),
    seconds => 50, clients => 2000);
GetOptions(\%option, 'scenario=s', 'row=s', 'seconds=i', 'clients=i', 'json=s',
    'logs=s') && !@ARGV && $option{seconds} >= 5 && $option{clients} >= 1
    or die "see the top of $0\n";
$| = 1;

my @plan = plan();
check_needs();
my $begun = time;
print_machine();
for my $n (0 .. $#plan) {
    measure($plan[$n], sprintf '%2d of %d', $n + 1, scalar @plan);
}
Peers::Report::print_tables(@plan);
Peers::Report::print_bars(@plan);
printf "\n%.0f min, load %s\n", (time - $begun) / 60, load();
spew($option{json}, JSON::PP->new->pretty->canonical->encode(
    { machine => machine(), cells => \@plan })) if $option{json};

# ---- what is to be done

# One after the other: { row, scenario, title, mode, seconds }
sub plan
{
    my %rows = map { $_->{name} => $_ } @rows;
    my @names = split /,/, $option{row};
    my %wanted = map { $_ => 1 } 'idle', split /,/, uc $option{scenario};

    for ([row => \%rows, @names],
        [scenario => { map { $_ => 1 } @scenarios }, keys %wanted]) {
        my ($what, $known, @these) = @$_;
        for my $name (@these) {
            die "no $what $name; there are: @{[sort keys %$known]}\n"
                if !$known->{$name};
        }
    }
    return map {
        my $row = $rows{$_};
        map { cells($row, $_) } grep { $wanted{$_} } @scenarios;
    } @names;
}

sub cells
{
    my ($row, $scenario) = @_;
    my $guarded = $row->{name} eq 'guard';
    my @modes = $scenario ne 'C' ? '' : $guarded ? qw(whole exact fixed)
        : 'fixed';

    return map { {
        row => $row->{name}, scenario => $scenario, mode => $_,
        title => $row->{title} . ($guarded && $_ ? ", $modes{$_}" : ''),
        seconds => $scenario eq 'idle' ? IDLE : $scenario eq 'C' ? HERD
            : $option{seconds},
    } } @modes;
}

sub check_needs
{
    my %wanted = map { $_->{row} => 1 } @plan;
    my @missing = Peers::Rows::missing(grep { $wanted{ $_->{name} } } @rows);

    die "These packages are missing: @missing.\n./quickstart.sh bench-peers"
        . " installs them and runs all of this; --row leaves peers out.\n"
        if @missing;
    die openloop() . " is missing: make t/bench/peers/openloop builds it\n"
        if !-x openloop();
}

sub openloop { builddir() . '/t/bench/peers/openloop' }

# ---- one row in one scenario

sub measure
{
    my ($cell, $place) = @_;
    my ($row) = grep { $_->{name} eq $cell->{row} } @rows;
    my $label = "$place  $cell->{scenario}  $cell->{title}";

    show($label, 'starts');
    my $run = Peers::Rows::start($row);
    my $db = $run->{stack}->db;
    warm_up($run);
    $db->sql('FLUSH STATUS');
    my $before = $db->status('Connection_errors_max_connections');

    my $text = schedule(%$cell, clients => $option{clients},
        comes_back => $cell->{mode});
    my $log = send_load($run, $text, $cell->{seconds} + PATIENCE + GRACE,
        sub { show($label, $_[0]) });
    $cell->{figures} = Peers::Figures::figures(%$cell, log => $log,
        scheduled => scheduled($text));
    $cell->{figures}{database} = {
        errors_1040 => $db->status('Connection_errors_max_connections')
            - $before,
        most => 0 + $db->status('Max_used_connections'),
    };
    keep_logs($cell, $run) if $option{logs};
    Peers::Rows::stop($run);
    check_works($cell);
    show($label, 'done', 1);
}

# One request to each worker, straight at Apache.
sub warm_up
{
    my ($run) = @_;
    my $text = join '', map {
        '0 warm ' . Peers::Load::address($_) . " never /warm.php\n";
    } 1 .. $run->{workers};
    my $log = send_load({ %$run, port => $run->{stack}->apache->port }, $text,
        PATIENCE, sub { });
    my $served = () = $log =~ /^\d+ warm 1 \d+ 200 /mg;

    die "only $served of $run->{workers} workers serve PHP:\n"
        . DBGuard::Stack::tail($run->{stack}->apache->php_log)
        if $served != $run->{workers};
}

# Carries out the schedule; returns openloop's log.
sub send_load
{
    my ($run, $text, $limit, $progress) = @_;
    my $dir = $run->{stack}->dir;

    spew("$dir/schedule", $text);
    open my $out, '-|', openloop(), $run->{port}, "$dir/schedule",
        "$dir/requests.log", $limit or die openloop() . ": $!\n";
    while (<$out>) {
        my ($seconds, $open, $ok, $bad) = split;
        $progress->(sprintf '%3d s  served %d, not served %d, open %d',
            $seconds, $ok, $bad, $open);
    }
    close $out or die "the load generator failed\n";
    return slurp("$dir/requests.log");
}

sub scheduled
{
    my ($text) = @_;
    my %count;
    $count{ (split)[1] }++ for split /\n/, $text;
    return \%count;
}

# Whatever is worth a table serves pages when nothing else happens.
sub check_works
{
    my ($cell) = @_;
    my $page = $cell->{figures}{page};

    die "$cell->{title} does not even serve its pages when idle: $page->{ok}"
        . " served, $page->{bad} not\n"
        if $cell->{scenario} eq 'idle' && $page->{bad} > $page->{ok};
}

sub keep_logs
{
    my ($cell, $run) = @_;
    my $dir = $run->{stack}->dir;
    my $to = join '-', "$option{logs}/$cell->{row}", $cell->{scenario},
        $cell->{mode} || ();

    make_path($to);
    for my $file ("$dir/schedule", "$dir/requests.log", "$dir/haproxy.cfg",
        "$dir/httpd/conf/httpd.conf", "$dir/httpd/log/access.log",
        "$dir/httpd/log/error.log", "$dir/db/error.log") {
        my $name = $file =~ m{/db/} ? 'mariadb.log' : $file =~ s{.*/}{}r;
        copy($file, "$to/$name") if -e $file;
    }
}

# ---- what is said meanwhile: one line that changes on a terminal, else a line
# at the end of each

sub show
{
    my ($label, $text, $end) = @_;

    print "\r$label  $text\e[K" if -t STDOUT;
    print -t STDOUT ? "\n" : "$label  $text\n" if $end;
}

sub load { join ' ', (split ' ', slurp('/proc/loadavg'))[0 .. 2] }

sub machine
{
    my ($cpu) = slurp('/proc/cpuinfo') =~ /^model name\s*: (.*)$/m;
    my $cores = () = slurp('/proc/cpuinfo') =~ /^processor\s*:/mg;
    my ($apache) = (DBGuard::Process::run(DBGuard::Apache::httpd(), '-v'))[1]
        =~ m{Apache/(\S+)};
    my ($mariadb) = (DBGuard::Process::run(
        DBGuard::MariaDB::program('mariadbd'), '--version'))[1]
        =~ /Ver (\d[\d.]*)/;
    my $haproxy = Peers::Rows::haproxy();
    my ($version) = $haproxy ? (DBGuard::Process::run($haproxy, '-v'))[1]
        =~ /version (\d[\d.]*)/ : ();
    my ($qos) = (DBGuard::Process::run('dpkg-query', '-W',
        '-f=${Version}', 'libapache2-mod-qos'))[1] =~ /^(\d[\d.]*)/;
    return {
        date => strftime('%Y-%m-%d', localtime), cpu => $cpu // 'unknown CPU',
        cores => $cores, linux => (uname)[2], apache => $apache,
        mariadb => $mariadb, haproxy => $version, mod_qos => $qos,
    };
}

sub print_machine
{
    my $m = machine();
    printf "%s, %s, %d cores, Linux %s, Apache %s prefork, MariaDB %s%s%s,"
        . " load %s\n", $m->{date}, $m->{cpu}, $m->{cores}, $m->{linux},
        $m->{apache}, $m->{mariadb},
        (map { $m->{$_} ? ", $_ $m->{$_}" : '' } qw(haproxy mod_qos)), load();
    my $estimate = 0;
    # 6 s to start, warm up and stop, and until the last answer.
    $estimate += $_->{seconds} + 8 for @plan;
    printf "%d measurements, about %d min\n\n", scalar @plan,
        ceil($estimate / 60);
}
