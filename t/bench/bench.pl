# What the guard costs, as ratios: bench_core for the core alone, then private
# Apaches with and without the module under load on the loopback.
#
#     make bench        or: perl -It/lib t/bench/bench.pl [--quick]
#
# Two minutes, or twenty seconds with --quick. Prints, never judges.
#
# Invariants:
#  - All servers run all the time. A row measures its two sides one directly
#    after the other, for a tenth of a second each, with the order swapped in
#    every round: whatever else the machine does hits both alike. A ratio is
#    the median of the ratios of the rounds, its range that of the middle half.
#  - The servers run on one core and the load generator on another: a rate is
#    what one core of a server does.
#  - All servers write the same access log and have the same status of errors;
#    what differs is what the row says.
#  - A measurement with an answer that was not expected ends the run.
# docs/internals/performance.md says how to read the table.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/../lib";
use List::Util qw(first sum);
use POSIX qw(uname);
use Time::HiRes qw(sleep);
use DBGuard::Stack qw(slurp spew builddir);

my $quick = @ARGV == 1 && $ARGV[0] eq '--quick';
die "usage: bench.pl [--quick]\n" if @ARGV && !$quick;

die "bench.pl needs wrk (Debian: apt-get install wrk)\n"
    if !grep { -x "$_/wrk" } split /:/, $ENV{PATH};

my $rounds = $quick ? 5 : 25;
my $workers = 8;
my $many = 400;
$| = 1;

# ---- the core alone, which needs two cores for a moment

my @core = (builddir() . '/t/bench/bench_core', $quick ? '--quick' : ());
system(@core) == 0 or die "$core[0] failed\n";

# ---- two cores: this process and so all servers on one, wrk on the other

my ($cores) = slurp('/proc/self/status') =~ /^Cpus_allowed_list:\s*(\S+)/m;
my ($wrk_core, $server_core) = map { /(\d+)-(\d+)/ ? $1 .. $2 : $_ }
    split /,/, $cores;
my @on_wrk_core = ('taskset', '-c', $wrk_core) x defined $server_core;
DBGuard::Process::run('taskset', '-pc', $server_core, $$)
    if defined $server_core;

# ---- the servers

# What all have: a virtual host, because its log takes the place of the main
# server's; no look for .htaccess files; a section for the guarded place, since
# httpd merges one section more for every request in it.
sub configuration
{
    my (%arg) = @_;
    my $items = $arg{log_items} ? ' %^DV %^DW %^DH %^DC \"%^DE\"' : '';
    return <<"END";
Timeout 600
MaxKeepAliveRequests 0
AddHandler trivial .trivial
<Directory />
AllowOverride None
</Directory>
<Directory \${DOCROOT}/guarded>
@{[ $arg{place} // '' ]}
</Directory>
@{[ $arg{main} // '' ]}
<VirtualHost *:*>
CustomLog log/bench.log "%h %t \\"%r\\" %>s %O %D$items"
@{[ $arg{host} // '' ]}
</VirtualHost>
END
}

# Places: plain/ is never guarded, guarded/ is where the module is On.
my $trivial = "<p>A trivial page.</p>\n";
my $php = "<p>A trivial <?php echo 'page'; ?>.</p>\n";
my %files = (
    'plain/x.trivial' => $trivial, 'guarded/x.trivial' => $trivial,
    'plain/x.php' => $php, 'guarded/x.php' => $php,
    'plain/x.html' => "<p>A static page.</p>\n",
    'guarded/x.html' => "<p>A static page.</p>\n",
    'guarded/slow.php' => "<?php usleep(5000); echo 'slow';\n",
    'guarded/hold.php' => '<?php sleep(600);',
);

sub start
{
    my (%arg) = @_;
    return DBGuard::Stack->start(apache => {
        guard => $arg{guard} // 0, workers => $arg{workers} // $workers,
        php => $arg{php} // 0, log_level => 'warn',
        files => \%files,
        config => configuration(%arg),
    })->apache;
}

sub start_guarded
{
    my ($budget, %arg) = @_;
    return start(%arg, guard => 1, place => 'DBGuard On', main => join "\n",
        'DBGuardEngine On', "DBGuardBudget $budget", $arg{main} // ());
}

# The only token is with a request that goes on and on. The refusal's page is
# also put there as a file.
my @holders;

sub fill
{
    my ($apache, $status) = @_;
    push @holders, $apache->get_async('/guarded/hold.php');
    my $refusal = DBGuard::Stack::wait_until(sub {
        my $answer = $apache->get('/guarded/x.trivial');
        $answer->{status} == $status && $answer;
    }, 10, 'the budget to be used up');
    $apache->write_file('plain/refusal.html', $refusal->{body});
    return length $refusal->{body};
}

sub qos_config
{
    my $module = DBGuard::Apache::apxs('LIBEXECDIR') . '/mod_qos.so';
    return if !-e $module;
    my $pcre = first { -e } glob '/usr/lib/*/libpcre.so.3';
    return join "\n", $pcre ? "LoadFile $pcre" : (),
        "LoadModule qos_module $module";
}

my %server = (
    none => start(),
    control => start(),
    off => start(guard => 1, main => 'DBGuardEngine Off'),
    on => start_guarded(1000),
    items => start_guarded(1000, log_items => 1),
    many => start_guarded(1000, workers => $many),
    php => start(php => 1),
    php_on => start_guarded(1000, php => 1),
    turns => start_guarded($workers / 2, php => 1,
        main => 'DBGuardQueue length=100'),
);
for my $status (503, 429) {
    $server{$status} = start_guarded(1, php => 1, workers => $workers + 1,
        main => "DBGuardQueue length=0\nDBGuardRefusal status=$status");
}
my $bytes = fill($server{503}, 503);
fill($server{429}, 429);

my $qos = qos_config();
if ($qos) {
    $server{qos} = start(main => $qos,
        host => 'QS_LocRequestLimit /guarded 1000');
    $server{qos_full} = start(php => 1, workers => $workers + 1,
        main => "$qos\nQS_ErrorResponseCode 503",
        host => 'QS_LocRequestLimit /guarded 1');
    fill($server{qos_full}, 503);
}

# ---- what is measured: name => [server, path, status, options]

my @crowd = (connections => $many, seconds => 0.7);
my %variants = (
    'file' => ['none', 'plain/x.html', 200],
    'file, control' => ['control', 'plain/x.html', 200],
    'file, Off' => ['off', 'plain/x.html', 200],
    'file, On' => ['on', 'plain/x.html', 200],
    'file, guarded place' => ['on', 'guarded/x.html', 200],
    'trivial' => ['none', 'guarded/x.trivial', 200],
    'trivial, guarded' => ['on', 'guarded/x.trivial', 200],
    'trivial, items' => ['items', 'guarded/x.trivial', 200],
    'trivial, many' => ['many', 'plain/x.trivial', 200, @crowd],
    'trivial, many, guarded' => ['many', 'guarded/x.trivial', 200, @crowd],
    'php' => ['php', 'guarded/x.php', 200],
    'php, guarded' => ['php_on', 'guarded/x.php', 200],
    'slow' => ['php_on', 'guarded/slow.php', 200, seconds => 0.15,
        connections => $workers / 2],
    'slow, turns' => ['turns', 'guarded/slow.php', 200, seconds => 0.15],
    'page, close' => [503, 'plain/refusal.html', 200, close => 1],
    '503' => [503, 'guarded/x.trivial', 503, close => 1],
    'page' => [429, 'plain/refusal.html', 200],
    '429' => [429, 'guarded/x.trivial', 429],
    $qos ? (
        'trivial, qos' => ['qos', 'guarded/x.trivial', 200],
        'page, qos' => ['qos_full', 'plain/refusal.html', 200, close => 1],
        '503, qos' => ['qos_full', 'guarded/x.trivial', 503, close => 1],
    ) : (),
);

# [what, against what, in words]; a lone string is a heading.
my @rows = (
    'a static file, against the same without the module',
    ['file, control', 'file', 'control: without the module again'],
    ['file, Off', 'file', 'loaded, DBGuardEngine Off'],
    ['file, On', 'file', 'On, place not guarded'],
    ['file, guarded place', 'file', 'On, in a guarded place'],
    'a trivial handler, against the same without the module',
    ['trivial, guarded', 'trivial', 'guarded, a token is always free'],
    ['trivial, qos', 'trivial', 'mod_qos, QS_LocRequestLimit'],
    'a trivial handler, guarded',
    ['trivial, items', 'trivial, guarded', 'five log items, against none'],
    ['trivial, many, guarded', 'trivial, many',
        "$many workers, $many clients, against unguarded"],
    'a trivial PHP page, against the same without the module',
    ['php, guarded', 'php', 'guarded, a token is always free'],
    'a PHP page that sleeps for 5 ms, against 4 clients and tokens for all',
    ['slow, turns', 'slow', '8 clients, 4 tokens: 4 always wait'],
    "the refusal, against a file of the same size on the same server",
    ['503', 'page, close', '503, a connection each'],
    ['503, qos', 'page, qos', "mod_qos's 503, a connection each"],
    ['429', 'page', '429, keep-alive'],
);

# ---- measuring

# Nanoseconds that the server's workers have been on a CPU.
sub cpu
{
    my (@pids) = @_;
    return sum map { (split ' ', slurp("/proc/$_/schedstat"))[0] // 0 } @pids;
}

my %pids;

# { rate => requests a second, cpu => microseconds a request }
sub measure
{
    my ($name) = @_;
    my ($server, $path, $status, %arg) = @{ $variants{$name} };
    my $apache = $server{$server};
    my $pids = $pids{$server} //= [$apache->workers];

    my $before = cpu(@$pids);
    my $pid = open my $out, '-|', @on_wrk_core, 'wrk', '-t1', '-d20s',
        '-c' . ($arg{connections} // $workers),
        $arg{close} ? ('-H', 'Connection: close') : (), $apache->url("/$path")
        or die "wrk does not run: $!";
    # From when it catches the signal, and then every 100 ms, it looks whether
    # it shall end.
    DBGuard::Stack::wait_until(sub {
        slurp("/proc/$pid/status") =~ /^SigCgt:\s*\w*[2367abef]$/m;
    }, 10, 'wrk to start');
    sleep($arg{seconds} // 0.05);
    kill INT => $pid;
    my $text = do { local $/; <$out> };
    close $out;
    my $used = cpu(@$pids) - $before;

    my ($n, $took, $milli) = $text =~ /(\d+) requests in ([\d.]+)(m?)s/
        or die "$name: wrk said:\n$text";
    $took /= 1000 if $milli;
    my $others = $text =~ /Non-2xx or 3xx responses: (\d+)/ ? $1 : 0;
    die "$name: not only $status:\n$text" . $apache->error_log
        if !$n || $others != ($status == 200 ? 0 : $n);
    return { rate => $n / $took, cpu => $used / $n / 1000 };
}

# Median and middle half.
sub quartiles
{
    my @sorted = sort { $a <=> $b } @_;
    return map { $sorted[int($#sorted * $_ + 0.5)] } 0.5, 0.25, 0.75;
}

sub print_figures
{
    my ($format, $what, @pairs) = @_;
    printf $format, (map {
        my $side = $_;
        (quartiles(map { $_->[$side]{$what} } @pairs))[0];
    } 0, 1), sprintf '%5.3f (%.3f-%.3f)',
        quartiles(map { $_->[1]{$what} / $_->[0]{$what} } @pairs);
}

sub load { join ' ', (split ' ', slurp('/proc/loadavg'))[0 .. 2] }

# ---- the run

sub main
{
    my ($cpu) = slurp('/proc/cpuinfo') =~ /^model name\s*: (.*)$/m;
    my ($version) = (DBGuard::Process::run(DBGuard::Apache::httpd(), '-v'))[1]
        =~ m{(Apache/\S+)};
    printf "\n%s, Linux %s, %s prefork on one core%s, %d workers and "
        . "clients, %d rounds, load %s\n", $cpu // 'unknown CPU', (uname)[2],
        $version, @on_wrk_core ? '' : ' with the load generator', $workers,
        $rounds, load();

    measure($_) for sort keys %variants;
    my @measured = grep { ref && $variants{ $_->[0] } } @rows;
    my %pairs;
    for my $round (1 .. $rounds) {
        for my $row (@measured) {
            my @sides = @$row[1, 0];
            my %at = map { $_ => measure($_) }
                $round % 2 ? @sides : reverse @sides;
            push @{ $pairs{$row} }, [@at{@sides}];
        }
    }

    printf "\n%-48s %15s  %-20s %13s\n", '', 'requests/s', '',
        'CPU us/request';
    printf "%-48s %7s %7s  %-20s %6s %6s  %s\n", "refusal: $bytes bytes",
        'base', 'this', 'ratio', 'base', 'this', 'ratio';
    for my $row (@rows) {
        if (!ref $row) {
            print "$row\n";
        } elsif ($pairs{$row}) {
            printf '  %-46s ', $row->[2];
            print_figures('%7.0f %7.0f  %-20s ', 'rate', @{ $pairs{$row} });
            print_figures("%6.1f %6.1f  %s\n", 'cpu', @{ $pairs{$row} });
        } else {
            print "  $row->[2]: skipped, mod_qos is not installed\n";
        }
    }
    print 'load ', load(), "\n";
    die "the token of a full server came back\n" if grep { $_->ready } @holders;
    die "nobody waited\n" if !$server{turns}->status_auto->{DBGuardWaitedTotal};
}

main();
