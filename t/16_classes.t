# Classes: the maximum of one holds it back while tokens are free, the minimum
# of one is kept for it, patience and lease are its own, log and environment
# name it; and it stays the same class over reloads, whatever else they change,
# while requests from before them hold tokens.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use DBGuard::Stack qw(spew wait_until);
use DBGuard::Topic qw(topic ends_with_topic is_figures);

# Runs until the test opens its gate, also when a restart interrupts its sleep.
my $gate = <<'END';
<?php
$file = dirname($_SERVER['DOCUMENT_ROOT']) . '/sessions/gate.'
    . basename($_GET['gate'] ?? 'open');
$end = hrtime(true) + 60e9;
while (!file_exists($file) && hrtime(true) < $end) {
    usleep(5000);
    clearstatcache();
}
echo $_SERVER['DBGUARD_CLASS'] ?? '-';
END

my @places = ('a' .. 'd', map { "c$_" } 1 .. 16);
my %files = map { ("$_/gate.php" => $gate) } @places, 'none';

# Each of these folders is in the class of its name.
sub places
{
    return join '', map { "<Location /$_>\nDBGuard $_\n</Location>\n" } @_;
}

sub start
{
    my ($workers, $config, @classes) = @_;
    my $stack = ends_with_topic(DBGuard::Stack->new(apache => {
        workers => $workers, php => 1, files => \%files,
        docroot_config => 'DBGuard On',
        config => "DBGuardEngine On\nDBGuardQueue length=8 patience=60s\n"
            . $config . places(@classes),
    }));
    my $apache = $stack->start->apache;
    spew($apache->dir . '/sessions/gate.open', '');
    return $apache;
}

sub reload
{
    my ($apache, $config, @classes) = @_;
    my $before = length $apache->error_log;
    $apache->set(config => "DBGuardEngine On\nDBGuardQueue length=8 "
        . "patience=60s\n$config" . places(@classes));
    $apache->restart('graceful');
    return substr $apache->error_log, $before;
}

my $gates = 0;

# A request that runs until its gate is opened: [request, gate].
sub hold
{
    my ($apache, $class) = @_;
    my $name = ++$gates;
    return [$apache->get_async("/$class/gate.php?gate=$name"), $name];
}

sub let_go
{
    my ($apache, @holders) = @_;
    spew($apache->dir . "/sessions/gate.$_->[1]", '') for @holders;
    return map { $_->[0]->response } @holders;
}

# What the log says of the last request with this in its URL.
sub entry
{
    my ($apache, $url) = @_;
    return wait_until(sub {
        (grep { $_->{request} =~ m{ /\Q$url\E} } $apache->access_entries)[-1];
    }, 10, "a line for $url");
}

my $tries = 0;

# Asks in vain; returns how long it waited.
sub is_refused
{
    my ($apache, $class, $reason, $what) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $url = "$class/gate.php?try=" . ++$tries;
    my $answer = $apache->get("/$url");
    my $entry = entry($apache, $url);
    is("$answer->{status} $entry->{verdict}", "503 refused($reason)", $what);
    return $entry->{wait};
}

topic 'a maximum' => sub {
    my $apache = start(16, <<'END', 'a', 'b');
DBGuardBudget 8
DBGuardClass a max=2 patience=300ms
DBGuardClass b max=25%
END
    my @holders = map { hold($apache, 'a') } 1, 2;
    is_figures($apache, 2, 0, 'as many as it may have');
    my $wait = is_refused($apache, 'a', 'class', 'a third one is refused');
    cmp_ok($wait, '>=', 300_000, '... after the patience of its class');
    is($apache->get('/none/gate.php')->{body}, 'default',
        'others have what is free');
    is($apache->get('/b/gate.php')->{body}, 'b', '... other classes, too');

    my @shares = map { hold($apache, 'b') } 1, 2;
    is_figures($apache, 4, 0, '25 % of 8 are two');
    push @shares, hold($apache, 'b');
    is_figures($apache, 4, 1, '... and not three');
    is_deeply([map { $_->{body} } let_go($apache, $shares[0])], ['b'],
        'one of them ends');
    is_figures($apache, 4, 0, '... and the one that waited follows');
    is_deeply([map { $_->{body} } let_go($apache, @holders, @shares[1, 2])],
        ['a', 'a', 'b', 'b'], 'all end');
    is($apache->get('/a/gate.php')->{body}, 'a', 'then there is room again');
};

topic 'a minimum' => sub {
    my $apache = start(16, <<'END', 'a');
DBGuardBudget 4
DBGuardClass a min=2
END
    my @others = map { hold($apache, 'none') } 1, 2;
    is_figures($apache, 2, 0, 'two have a token');
    push @others, hold($apache, 'none');
    is_figures($apache, 2, 1, 'two are kept for the class');
    my @holders = map { hold($apache, 'a') } 1, 2;
    is_figures($apache, 4, 1, '... which has them at once');
    my $third = hold($apache, 'a');
    is_figures($apache, 4, 2, 'beyond its minimum it waits as others do');
    let_go($apache, $others[0]);
    is_figures($apache, 4, 1, 'what others give back, others may have');
    let_go($apache, @others[1, 2], @holders, $third);
    is_figures($apache, 0, 0, 'all end');
};

topic 'patience' => sub {
    my $apache = start(16, <<'END', 'a');
DBGuardBudget 1
DBGuardClass a patience=200ms
END
    my $holder = hold($apache, 'none');
    is_figures($apache, 1, 0, 'a holder');
    my $waiter = hold($apache, 'none');
    is_figures($apache, 1, 1, 'one in no class waits');
    my $wait = is_refused($apache, 'a', 'timeout',
        'one of the class does not wait long');
    cmp_ok($wait, '>=', 200_000, '... at least as long as it says');
    cmp_ok($wait, '<', 5_000_000, '... and not as long as others');
    is_figures($apache, 1, 1, 'the other one waits on');
    is_deeply([map { $_->{status} } let_go($apache, $holder, $waiter)],
        [200, 200], 'both are served');
};

topic 'a lease' => sub {
    my $apache = start(16, <<'END', 'a', 'b');
DBGuardBudget 1
DBGuardClass a hold=300ms
DBGuardClass b hold=60min
END
    my $holder = hold($apache, 'a');
    is_figures($apache, 1, 0, 'it has the token');
    is($apache->get('/none/gate.php')->{body}, 'default',
        'another one gets it');
    ok(!$holder->[0]->ready, '... while it runs');
    is(entry($apache, 'none')->{verdict}, 'waited', '... having waited');
    is($apache->get('/none/gate.php')->{body}, 'default', '... and others');
    is((let_go($apache, $holder))[0]{body}, 'a', 'then it ends');
    my $entry = entry($apache, 'a');
    is($entry->{hold}, 300_000, '%^DH is the lease');
    is($entry->{verdict}, 'admitted', '%^DV');
    my $status = $apache->status_auto;
    is($status->{DBGuardHeld}, 0, 'the token is back');
    is($status->{DBGuardReleasedTotal}, 3, '... once');

    is($apache->get('/b/gate.php')->{body}, 'b', 'a request within its lease');
    cmp_ok(entry($apache, 'b')->{hold}, '<', 60_000_000, 'has its own hold');
};

topic 'minimums that the database has no room for' => sub {
    my $stack = ends_with_topic(DBGuard::Stack->new(
        db => { max_connections => 12 },
        apache => { workers => 8, docroot_config => 'DBGuard On' }));
    my ($apache, $db) = ($stack->apache, $stack->db);
    $db->start;
    spew($stack->dir . '/password', $db->password . "\n", 0600);
    my $config = "DBGuardEngine On\nDBGuardDatabase mariadb://app\@127.0.0.1:"
        . $db->port . "\nDBGuardPasswordFile " . $stack->dir . "/password\n"
        . "DBGuardClass a min=6\nDBGuardClass b min=6\n";
    my $said = qr/DBGUARD0045: DBGuardClass b \(\S+:\d+\): with min=6 the /;
    $apache->set(config => $config);
    my ($code, $output) = $apache->configtest;
    is($code, 0, 'a configtest passes') or diag($output);
    like($output, qr/warn\].*$said.* 12 tokens, .* database leaves is \d,?/,
        '... with a warning');
    $apache->start;
    like($apache->error_log, $said, 'as does a start');
    $apache->stop;

    $apache->set(config => $config =~ s/b min=6/b min=2/r);
    unlike(($apache->configtest)[1], qr/DBGUARD004/, 'nothing about less');
    $apache->set(config => "${config}DBGuardLint refuse\nDBGuardReserve 3\n");
    ($code, $output) = $apache->configtest;
    isnt($code, 0, 'DBGuardLint refuse refuses');
    like($output, $said, '... and says why');
};

topic 'what names it' => sub {
    my $apache = start(8, <<"END" . places('a') . <<'END');
DBGuardBudget 3
DBGuardClass a max=1
END
<Location /b>
DBGuard a
</Location>
<Location /b/off>
DBGuard Off
</Location>
<Location /a/on>
DBGuard On
</Location>
END
    $apache->write_file("$_/x.php", '<?php echo $_SERVER["DBGUARD_CLASS"] ?? '
        . '"-";') for qw(none a b b/off a/on);
    my %class = (none => 'default', a => 'a', b => 'a', 'b/off' => '-',
        'a/on' => 'default');
    for my $place (sort keys %class) {
        is($apache->get("/$place/x.php")->{body}, $class{$place},
            "/$place: PHP sees $class{$place}");
        is(entry($apache, $place)->{class}, $class{$place}, '... and the log');
    }
    like(($apache->ctl('status'))[1], qr/DBGuardClass.*a max=1/,
        'dbguardctl shows it');
};

topic 'the same class over reloads' => sub {
    my $apache = start(24, <<'END', 'a', 'b');
DBGuardBudget 12
DBGuardClass a max=1 patience=200ms
DBGuardClass b max=2 patience=200ms
END
    my @a = hold($apache, 'a');
    my @b = map { hold($apache, 'b') } 1, 2;
    is_figures($apache, 3, 0, 'both are full');

    reload($apache, <<'END', 'a' .. 'd');
DBGuardBudget 12
DBGuardClass d max=1 patience=200ms
DBGuardClass b max=3 patience=200ms
DBGuardClass c max=1 patience=200ms
DBGuardClass a max=1 patience=200ms
END
    is_refused($apache, 'a', 'class', 'in another order: a is full');
    push @b, hold($apache, 'b');
    is_figures($apache, 4, 0, 'b has one more, as the reload says');
    is_refused($apache, 'b', 'class', '... and no further one');
    is($apache->get("/$_/gate.php")->{body}, $_, "$_ is empty") for 'c', 'd';

    reload($apache, <<'END', 'a');
DBGuardBudget 12
DBGuardClass a max=1 patience=200ms
END
    is_refused($apache, 'a', 'class', 'without b: a is full');
    is($apache->get('/b/gate.php')->{body}, 'default', 'b is none any more');
    reload($apache, <<'END', 'b', 'c');
DBGuardBudget 12
DBGuardClass c max=1 patience=200ms
DBGuardClass b max=3 patience=200ms
END
    is_refused($apache, 'b', 'class', 'b is back, and full');
    is($apache->get('/c/gate.php')->{body}, 'c', 'c is empty');
    is_deeply([map { $_->{body} } let_go($apache, @a, @b)],
        ['a', 'b', 'b', 'b'], 'who began in a class ends in it');
    is_figures($apache, 0, 0, 'all end');
    is($apache->get('/b/gate.php')->{body}, 'b', 'then b has room');
};

topic 'more names than places' => sub {
    my $apache = start(32, "DBGuardBudget 24\n"
        . join('', map { "DBGuardClass c$_ max=1 patience=200ms\n" } 1 .. 16),
        map { "c$_" } 1 .. 16);
    my @holders = hold($apache, 'c1');
    is_figures($apache, 1, 0, 'one holds');
    for my $name ('d', 'e') {
        my $log = reload($apache, "DBGuardBudget 24\n"
            . join '', map { "DBGuardClass $name$_ max=1\n" } 1 .. 16);
        unlike($log, qr/DBGUARD0046/, "16 others ($name) have their places");
    }
    my $first = "DBGuardBudget 24\n"
        . join '', map { "DBGuardClass c$_ max=1 patience=200ms\n" } 1 .. 16;
    my $log = reload($apache, $first, map { "c$_" } 1 .. 16);
    unlike($log, qr/DBGUARD0046/, 'so do the first ones again');
    is_refused($apache, 'c1', 'class', 'the one that was in use is the same');
    push @holders, map { hold($apache, "c$_") } 2 .. 16;
    is_figures($apache, 16, 0, 'all in use');

    $log = reload($apache, "DBGuardBudget 24\n"
        . join('', map { "DBGuardClass f$_ max=1 patience=200ms\n" } 1 .. 15)
        . "DBGuardClass a max=1 patience=200ms\n", 'a');
    like($log, qr/:crit\].*DBGUARD0046: DBGuardClass a \(\S+:\d+\) is not in/,
        'one too many is left without');
    is(scalar(() = $log =~ /DBGUARD0046/g), 1, '... and only one');
    is($apache->get('/a/gate.php')->{body}, 'default',
        '... and counts as being in no class');
    let_go($apache, @holders);
    is_figures($apache, 0, 0, 'all end');
    $log = reload($apache, "DBGuardBudget 24\n"
        . "DBGuardClass a max=1 patience=200ms\n", 'a');
    is($apache->get('/a/gate.php')->{body}, 'a', 'then it has one');
};

done_testing;
