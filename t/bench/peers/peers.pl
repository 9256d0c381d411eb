#!/usr/bin/perl
# The guard beside what else is put in front of such a database: the same load
# on the same machine in one run, one after the other.
#
#     make bench-peers    or:  perl -It/lib t/bench/peers/peers.pl
#         [--scenario A,B,C] [--row ROW,...] [--seconds N] [--json FILE]
#         [--seed N]
#
# Rows: alone, workers20, qos, haproxy, haproxy-first, guard. Scenarios (all with
# MariaDB max_connections 24, 192 prefork workers, limits of 20):
#     A  one tab loops on a short endpoint
#     B  the external system is three times slower for a while; every second
#        client that is told to come back does so then, once
#     C  2,000 clients come within 0.3 s and come back until they are served:
#        by whole seconds, by the fraction, or deaf to what they are told
# All load is on the loopback, planned beforehand, and the same for every row.
# docs/comparison.md says how to read the table.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/../../lib";
use Getopt::Long;
use JSON::PP;
use List::Util qw(max min sum0);
use POSIX qw(strftime);
use Time::HiRes qw(sleep time);
use DBGuard::Stack qw(wait_until slurp spew builddir);

use constant { BUDGET => 20, CONNECTIONS => 24, WORKERS => 192, HERD => 2000 };
use constant IDLE => 10;    # seconds of pages and files alone, for comparison
use constant IDEAL => HERD * 0.0525 / BUDGET;

my %rows = (
    alone => 'Apache alone',
    workers20 => 'MaxRequestWorkers 20',
    qos => 'mod_qos, limit 20',
    haproxy => 'HAProxy, maxconn 20',
    'haproxy-first' => 'HAProxy, pages first',
    guard => 'mod_dbguard, budget 20',
);
my %option = (
    scenario => 'A,B,C', seconds => 50, seed => 1,
    row => 'alone,workers20,qos,haproxy,haproxy-first,guard',
);
GetOptions(\%option, 'scenario=s', 'row=s', 'seconds=i', 'json=s', 'seed=i')
    && !@ARGV && $option{seconds} >= 10
    or die "see the top of $0\n";
my @rows = split /,/, $option{row};
my @scenarios = map { $_ eq 'C' ? qw(C-seconds C-fraction C-deaf) : $_ }
    split /,/, $option{scenario};
for (grep { !$rows{$_} } @rows) { die "there is no row $_\n" }
for (grep { !/^(A|B|C-(seconds|fraction|deaf))$/ } @scenarios) {
    die "there is no scenario $_\n";
}
die "haproxy is not installed: apt-get install haproxy\n"
    if grep({ /haproxy/ } @rows) && !-x '/usr/sbin/haproxy';
die "mod_qos is not installed: apt-get install libapache2-mod-qos\n"
    if grep({ $_ eq 'qos' } @rows)
    && !-e DBGuard::Apache::apxs('LIBEXECDIR', '/usr/lib/apache2/modules')
        . '/mod_qos.so';
$| = 1;

my %result;
for my $scenario (@scenarios) {
    for my $row (@rows) {
        # Only the guard says a fraction.
        next if $scenario eq 'C-fraction' && $row ne 'guard';
        next if $scenario eq 'C-seconds' && $row ne 'guard';
        $result{$scenario}{$row} = run($scenario, $row);
    }
    print_table($scenario, $result{$scenario});
}
print_verdicts() if $result{A}{guard} || $result{B}{guard};
spew($option{json}, JSON::PP->new->pretty->canonical->encode(\%result))
    if $option{json};

# ---- servers

sub start_servers
{
    my ($row) = @_;
    my $config = "ListenBacklog 4096\nKeepAlive Off\n";

    $config .= <<'END' if $row eq 'guard';
DBGuardEngine On
DBGuardBudget 20
<Directory ${DOCROOT}/app>
DBGuard On
</Directory>
END
    $config .= <<'END' if $row eq 'qos';
QS_LocRequestLimitMatch "^/app/" 20
QS_ErrorResponseCode 503
END
    return DBGuard::Stack->start(
        db => { max_connections => CONNECTIONS },
        apache => {
            workers => $row eq 'workers20' ? 20 : WORKERS, php => 1,
            guard => $row eq 'guard', docroot => "$FindBin::Bin/www",
            modules => $row eq 'qos' ? ['qos'] : [], config => $config,
            log_level => 'warn',
        });
}

sub start_haproxy
{
    my ($stack, $first) = @_;
    my $port = DBGuard::Stack::free_port();
    my $dir = $stack->dir;
    my $rule = $first
        ? 'http-request set-priority-class int(-10) if { path /app/page.php }'
        : '';

    spew("$dir/haproxy.cfg", <<"END");
global
    maxconn 8000
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout queue 8s
    option http-server-close
frontend f
    bind 127.0.0.1:$port
    use_backend static if { path_beg /static/ }
    default_backend app
backend static
    server s 127.0.0.1:@{[$stack->apache->port]}
backend app
    $rule
    server s 127.0.0.1:@{[$stack->apache->port]} maxconn 20
END
    $stack->{haproxy} = DBGuard::Process->spawn(
        output => "$dir/haproxy.log",
        command => ['/usr/sbin/haproxy', '-db', '-f', "$dir/haproxy.cfg"]);
    wait_until(sub {
        IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port);
    }, 10, 'HAProxy to listen');
    return $port;
}

# ---- the plan: the same for all rows

sub new_plan
{
    my ($seed) = @_;
    srand $seed;
    return { streams => [], at => [], clients => 0 };
}

sub address
{
    my ($plan) = @_;
    my $n = ++$plan->{clients};
    return sprintf '127.%d.%d.%d', 1 + ($n >> 16), $n >> 8 & 255, $n & 255;
}

# Open loop: they come at random, at a mean rate.
sub add_stream
{
    my ($plan, $name, $mode, $from, $to, $rate, $path) = @_;
    my $t = $from;

    push @{ $plan->{streams} }, "stream $name $mode\n";
    while (($t -= log(1 - rand) / $rate) < $to) {
        push @{ $plan->{at} }, sprintf "at %d %s %s %s\n", $t * 1e6, $name,
            address($plan), ref $path ? $path->($t) : $path;
    }
}

sub normal { sqrt(-2 * log(1 - rand)) * cos(6.283185307 * rand) }

sub background
{
    my ($plan, $seconds, $pages, $calcs, $slow) = @_;
    my ($from, $to) = ($seconds / 5, $seconds * 3 / 5);

    add_stream($plan, 'page', 'once', 0, $seconds, $pages, '/app/page.php');
    add_stream($plan, 'static', 'once', 0, $seconds, 5, '/static/style.css');
    add_stream($plan, 'calc', 'told', 0, $seconds, $calcs, sub {
        my $factor = $slow && $_[0] >= $from && $_[0] < $to ? 3 : 1;
        '/app/calc.php?us='
            . int(1e6 * min(5.4, $factor * exp(0.85 * normal())));
    }) if $calcs;
}

sub plan_of
{
    my ($scenario) = @_;
    my $plan = new_plan($option{seed});
    my $seconds = $option{seconds};

    if ($scenario =~ /^C-(.*)/) {
        background($plan, 20, 30, 0, 0);
        push @{ $plan->{streams} }, "stream herd $1\n";
        push @{ $plan->{at} }, sprintf "at %d herd %s /app/auth.php\n",
            (3 + 0.3 * rand) * 1e6, address($plan) for 1 .. HERD;
        return $plan;
    }
    background($plan, $seconds, 40, 14, $scenario eq 'B');
    if ($scenario eq 'A') {
        push @{ $plan->{streams} },
            sprintf "stream tab loop %d\n", $seconds * 3 / 5 * 1e6;
        push @{ $plan->{at} }, sprintf "at %d tab %s /app/reset.php\n",
            $seconds / 5 * 1e6, address($plan);
    }
    return $plan;
}

sub idle_plan
{
    my $plan = new_plan($option{seed});
    background($plan, IDLE, 40, 0, 0);
    return $plan;
}

# ---- one run

sub run
{
    my ($scenario, $row) = @_;
    my $stack = start_servers($row);
    my $port = $row =~ /^haproxy/
        ? start_haproxy($stack, $row eq 'haproxy-first')
        : $stack->apache->port;
    my %figures;

    $stack->apache->get('/app/page.php') for 1 .. 20;
    $figures{idle} = send_load($stack, $port, idle_plan(),
        "$scenario, $rows{$row}: idle");
    $stack->db->sql('FLUSH STATUS');
    $figures{load} = send_load($stack, $port, plan_of($scenario),
        "$scenario, $rows{$row}: load");
    $figures{most} = 0 + $stack->db->status('Max_used_connections');
    $figures{refused_connections}
        = 0 + $stack->db->status('Connection_errors_max_connections');
    $stack->{haproxy}->stop('TERM', 5) if $stack->{haproxy};
    $stack->stop;
    return \%figures;
}

sub send_load
{
    my ($stack, $port, $plan, $what) = @_;
    my $dir = $stack->dir;
    my $begun = time;

    spew("$dir/plan", join '', @{ $plan->{streams} }, @{ $plan->{at} });
    my $load = DBGuard::Process->spawn(
        output => "$dir/openloop.log",
        command => ['sh', '-c', 'exec "$1" "$2" < "$3" > "$4"', 'sh',
            builddir() . '/t/bench/peers/openloop', $port, "$dir/plan",
            "$dir/answers"]);
    while ($load->alive && time < $begun + 300) {
        printf STDERR "\r%-60s %3d s ", $what, time - $begun if -t STDERR;
        sleep 0.2;
    }
    print STDERR "\r\e[K" if -t STDERR;
    printf "%s: %d s\n", $what, time - $begun;
    $load->stop('TERM', 1) == 0
        or die "openloop failed:\n" . slurp("$dir/openloop.log");
    return figures("$dir/answers");
}

sub quantile
{
    my ($q, @sorted) = @_;
    return @sorted ? $sorted[min($#sorted, int(@sorted * $q))] / 1000 : undef;
}

# By stream: first attempts that were served or not, those that came back, and
# times in milliseconds of what was served.
sub figures
{
    my ($file) = @_;
    my (%f, %times);

    for (split /\n/, slurp($file)) {
        my ($name, $attempt, $start, $us, $status, $errors) = split;
        my $f = $f{$name} //= {
            ok => 0, bad => 0, back => 0, back_ok => 0, attempts => 0,
            errors => 0, last => 0, gone => 0,
        };
        my $ok = $status == 200;

        $f->{attempts}++;
        $f->{errors} += $errors;
        $f->{status}{$status}++;
        push @{ $times{$name} }, $us if $ok;
        $f->{last} = max($f->{last}, ($start + $us) / 1e6) if $ok;
        if ($attempt > 0 && $name eq 'calc') {
            $f->{back}++;
            $f->{back_ok} += $ok;
        }
        else {
            $f->{ $ok ? 'ok' : 'bad' }++;
        }
    }
    for my $name (keys %f) {
        my @sorted = sort { $a <=> $b } @{ $times{$name} // [] };
        $f{$name}{"p$_"} = quantile($_ / 100, @sorted) for 50, 99;
    }
    return \%f;
}

# ---- what came out

sub ms { defined $_[0] ? sprintf $_[0] < 100 ? '%.1f' : '%.0f', $_[0] : '-' }

sub print_table
{
    my ($scenario, $by_row) = @_;
    my @rows = grep { $by_row->{$_} } @rows;

    printf "\n%s  (%s)\n", $scenario, strftime('%F', localtime);
    for my $row (@rows) {
        my ($idle, $f) = @{ $by_row->{$row} }{qw(idle load)};
        my $page = $f->{page};
        my @cells = (sprintf '%-24s', $rows{$row});

        push @cells, sprintf 'pages %d / %d, p50 %s p99 %s (idle %s)',
            @$page{qw(ok bad)}, ms($page->{p50}), ms($page->{p99}),
            ms($idle->{page}{p99});
        push @cells, sprintf 'static p99 %s (idle %s)',
            ms($f->{static}{p99}), ms($idle->{static}{p99});
        push @cells, calc_cell($f->{calc}) if $f->{calc};
        push @cells, sprintf 'tab %d / %d', @{ $f->{tab} }{qw(ok bad)}
            if $f->{tab};
        push @cells, sprintf 'herd after %.1f s, %.2f attempts each',
            $f->{herd}{last} - 3, $f->{herd}{attempts} / HERD if $f->{herd};
        push @cells, sprintf '1040: %d, connections %d', errors($by_row->{$row}),
            $by_row->{$row}{most};
        print join(' | ', @cells), "\n";
    }
    print "\n";
}

sub calc_cell
{
    my ($calc) = @_;
    my $cell = sprintf 'calc %d / %d', @$calc{qw(ok bad)};

    $cell .= sprintf ' + %d of %d that came back when told',
        @$calc{qw(back_ok back)} if $calc->{back};
    return $cell;
}

sub errors
{
    my ($run) = @_;
    return max($run->{refused_connections},
        sum0(map { $_->{errors} } values %{ $run->{load} }));
}

sub judge
{
    my ($what, $ok, $figures) = @_;
    printf "%-6s %s: %s\n", $ok ? 'met' : 'MISSED', $what, $figures;
}

sub share { $_[0] / (($_[0] + $_[1]) || 1) }

sub judge_pages
{
    my ($scenario, $run, $share, $times) = @_;
    my ($page, $static) = @{ $run->{load} }{qw(page static)};
    my $idle = $run->{idle};

    judge("$scenario pages served", share(@$page{qw(ok bad)}) >= $share,
        sprintf '%.2f %% (at least %.1f %%)', 100 * share(@$page{qw(ok bad)}),
        100 * $share);
    judge("$scenario page p99", $page->{p99} <= $times * $idle->{page}{p99},
        sprintf '%.1f ms, %.1f times idle (at most %d)', $page->{p99},
        $page->{p99} / $idle->{page}{p99}, $times);
    judge("$scenario static p99", $static->{p99} <= 2 * $idle->{static}{p99},
        sprintf '%.2f ms, idle %.2f (within twice)', $static->{p99},
        $idle->{static}{p99});
    judge("$scenario errors 1040", errors($run) == 0, errors($run));
}

sub judge_herd
{
    my ($scenario, $run, $times, $attempts) = @_;
    my $herd = $run->{load}{herd};

    judge_pages($scenario, $run, 0.995, 5);
    judge("$scenario herd", $herd->{ok} == HERD
        && $herd->{last} - 3 <= $times * IDEAL
        && $herd->{attempts} <= $attempts * HERD,
        sprintf '%d served after %.1f s, %.2f times the ideal (at most %.1f),'
        . ' %.2f attempts each (at most %.1f)', $herd->{ok},
        $herd->{last} - 3, ($herd->{last} - 3) / IDEAL, $times,
        $herd->{attempts} / HERD, $attempts);
}

sub print_verdicts
{
    if (my $run = $result{A}{guard}) {
        my ($calc, $tab) = @{ $run->{load} }{qw(calc tab)};
        judge_pages('A', $run, 1, 3);
        judge('A calculations served', share(@$calc{qw(ok bad)}) >= 0.97,
            sprintf '%.1f %% (at least 97 %%)',
            100 * share(@$calc{qw(ok bad)}));
    }
    if (my $run = $result{B}{guard}) {
        my $calc = $run->{load}{calc};
        judge_pages('B', $run, 0.995, 3);
        judge('B told to return, returning then, served',
            share($calc->{back_ok}, $calc->{back} - $calc->{back_ok}) >= 0.9,
            "$calc->{back_ok} of $calc->{back}");
        if (my $proxy = $result{B}{haproxy}) {
            my $theirs = $proxy->{load}{calc}{ok};
            my $ours = $calc->{ok} + $calc->{back_ok};
            judge('B calculations served', $ours >= 0.95 * $theirs,
                sprintf '%d, %d of them at the first attempt, of HAProxy\'s %d:'
                . ' %.1f %% (at least 95 %%)', $ours, $calc->{ok}, $theirs,
                100 * $ours / $theirs);
        }
    }
    my %bars = ('C-seconds' => [2.5, 2.5], 'C-fraction' => [1.3, 2]);
    for my $scenario (sort keys %bars) {
        my $run = $result{$scenario}{guard} or next;
        judge_herd($scenario, $run, @{ $bars{$scenario} });
    }
    my ($ours, $qos) = map { $result{'C-deaf'}{$_} } qw(guard qos);
    return if !$ours;
    judge_pages('C-deaf', $ours, 0.995, 5);
    judge('C-deaf herd', $ours->{load}{herd}{last} < $qos->{load}{herd}{last},
        sprintf '%.1f s, mod_qos %.1f s', map { $_->{load}{herd}{last} - 3 }
        $ours, $qos) if $qos;
}
