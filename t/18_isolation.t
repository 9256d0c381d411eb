# Whoever asks for much is in nobody's way: light pages are served beside heavy
# work, one client beside another one that wants everything, known pages beside
# made-up ones; who comes when it was told to is served before newcomers; and
# who has to give way is told why.
#
# What is compared is orders and states, which hold on a slow machine as well:
# pages run until the test opens their gates, and note the order in which they
# began.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use Time::HiRes qw(sleep time);
use DBGuard::Stack qw(wait_until slurp);
use DBGuard::Topic qw(topic ends_with_topic is_figures);

my $php = <<'END';
<?php
// Runs until the test opens ?gate=, or for ?ms= milliseconds.
$dir = dirname(__DIR__) . '/sessions';
$gate = basename($_GET['gate'] ?? '');
$end = hrtime(true) + 60e9;
if ($gate !== '') {
    file_put_contents("$dir/order", "$gate\n", FILE_APPEND | LOCK_EX);
}
while ($gate !== '' && !file_exists("$dir/gate.$gate")
    && hrtime(true) < $end) {
    usleep(2000);
    clearstatcache();
}
usleep(1000 * ($_GET['ms'] ?? 0));
echo 'ran';
END

my %files = map { ("$_.php" => $php) } qw(page heavy photo app);

# arg: budget, length, patience (60s), config.
sub start
{
    my (%arg) = @_;
    my $patience = $arg{patience} // '60s';
    my $stack = DBGuard::Stack->new(apache => {
        workers => 28, php => 1, files => \%files,
        config => "DBGuardEngine On\nDBGuardBudget $arg{budget}\n"
            . "DBGuardQueue length=$arg{length} patience=$patience\n"
            . ($arg{config} // ''),
        docroot_config => "DBGuard On\nFallbackResource /app.php\n",
    });
    ends_with_topic($stack);
    return $stack->start->apache;
}

# A client is the last byte of its address.
sub send_from
{
    my ($apache, $client, $path, %headers) = @_;
    return $apache->open_request('GET', $path, headers => \%headers,
        address => "127.0.0.$client");
}

sub status_from { send_from(@_)->response->{status} }

# How long it takes is known from so many.
sub is_known
{
    my ($apache, $client, $path, $times) = @_;
    is_deeply([grep { $_ != 200 }
        map { status_from($apache, $client, $path) } 1 .. $times // 1], [],
        "$path is known");
}

# A request that runs until open_gate: [request, name].
my %gates;

sub gated
{
    my ($apache, $client, $path, %headers) = @_;
    my $name = "$client-" . ++$gates{$client};
    return [send_from($apache, $client, "$path?gate=$name", %headers), $name];
}

sub open_gate
{
    my ($apache, @gated) = @_;
    DBGuard::Stack::spew($apache->dir . "/sessions/gate.$_->[1]", '')
        for @gated;
}

sub statuses { map { $_->[0]->response->{status} } @_ }
sub began { split /\n/, slurp($_[0]->dir . '/sessions/order') }

# Those who came at once: n of them run, these first.
sub in_order
{
    my ($apache, $n, @gated) = @_;
    my (@order, %place);
    wait_until(sub { (@order = began($apache)) == $n }, 10, "$n to run");
    @place{@order} = 0 .. $#order;
    return sort { ($place{ $a->[1] } // $n) <=> ($place{ $b->[1] } // $n) }
        @gated;
}

# One ends, and then that one begins.
sub is_passed_on
{
    my ($apache, $from, $to, $what) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $n = began($apache);
    my @order;
    open_gate($apache, $from);
    is(($from->[0]->response)->{status}, 200, 'one is served');
    wait_until(sub { (@order = began($apache)) > $n }, 10, 'the next one');
    is($order[$n], $to->[1], $what);
}

sub total { $_[0]->status_auto->{"DBGuard$_[1]Total"} }

# The end of a topic: everybody is served, and nothing is left.
sub is_over
{
    my ($apache, @gated) = @_;
    open_gate($apache, @gated);
    is_deeply([grep { $_ != 200 } statuses(@gated)], [], 'all are served');
    is_figures($apache, 0, 0, 'the end');
    is(total($apache, 'RefusedBoard'), 0, 'no slot is lost');
}

topic 'light pages beside heavy work that fills the budget' => sub {
    my $apache = start(budget => 4, length => 12);
    is_known($apache, 3, '/page.php', 5);
    is_known($apache, 2, '/heavy.php?ms=300');

    my @heavy = map { gated($apache, 10 + $_, '/heavy.php') } 1 .. 9;
    is_figures($apache, 3, 6, 'heavy work leaves one token to lighter work');
    @heavy = in_order($apache, 3, @heavy);
    is_deeply([grep { $_ != 200 }
        map { status_from($apache, 3, '/page.php') } 1 .. 20], [],
        'pages, one after the other');
    is_deeply([grep { $_ != 200 } map { $_->response->{status} }
        map { send_from($apache, 30 + $_, '/page.php') } 1 .. 6], [],
        'pages, all at once');
    is(scalar(began($apache)), 3, 'all that while heavy work has waited');
    is(total($apache, 'Refused'), 0, 'nobody was refused');
    is_figures($apache, 3, 6, 'the token stays theirs for a while');

    # A page that finds another one there waits for what is over first.
    my $first = gated($apache, 3, '/page.php');
    is_figures($apache, 4, 6, 'a page holds');
    my $page = gated($apache, 4, '/page.php');
    is_figures($apache, 4, 7, 'another one waits');
    is_passed_on($apache, shift @heavy, $page, '... and is next');
    is_over($apache, $first, $page, @heavy);
    is($apache->status_auto->{DBGuardHeldPeak}, 4, 'never above the budget');
};

# Case 4: somebody browses photos, and takes all connections.
topic 'one client with ten long requests' => sub {
    my $apache = start(budget => 8, length => 16);
    my ($many, $few) = (10, 20);
    is_known($apache, $few, '/photo.php?ms=1200');

    my @many = map { gated($apache, $many, '/photo.php') } 1 .. 10;
    is_figures($apache, 7, 3, 'it leaves a token to another one');
    @many = in_order($apache, 7, @many);
    my @few = gated($apache, $few, '/photo.php');
    is_figures($apache, 8, 3, '... which has it at once');
    in_order($apache, 8);
    is((began($apache))[7], $few[0][1], '... and runs');
    push @few, gated($apache, $few, '/photo.php');
    is_figures($apache, 8, 4, 'a second request of the other one waits');
    is_passed_on($apache, shift @many, $few[1], '... and is next');
    push @few, gated($apache, $few, '/photo.php');
    is_figures($apache, 8, 4, 'a third one');
    is_passed_on($apache, shift @many, $few[2], '... likewise');
    is(total($apache, 'Refused'), 0, 'nobody was refused');
    is_over($apache, @few, @many);
};

topic 'one client that was alone, and has everything' => sub {
    my $apache = start(budget => 4, length => 16);
    is_known($apache, 10, '/photo.php?ms=1200');
    my @many = map { gated($apache, 10, '/photo.php') } 1 .. 10;
    is_figures($apache, 4, 6, 'alone it may have every token');
    @many = in_order($apache, 4, @many);
    my $other = gated($apache, 20, '/photo.php');
    is_figures($apache, 4, 7, 'another one comes');
    is_passed_on($apache, shift @many, $other, '... and is next');
    is_over($apache, $other, @many);
};

topic 'a client that has every place' => sub {
    my $apache = start(budget => 2, length => 4);
    is_known($apache, 10, '/page.php', 5);
    my @loop = map { my $one = gated($apache, 10, '/page.php');
        is_figures($apache, $_ < 2 ? $_ : 2, $_ > 2 ? $_ - 2 : 0, 'one more');
        $one } 1 .. 6;
    is(status_from($apache, 10, '/page.php'), 503, 'a seventh is refused');
    # One after the other, however many have come before it.
    my @others = map {
        my $other = gated($apache, 20 + $_, '/page.php');
        is((statuses(pop @loop))[0], 503, "client $_ gets a place of its");
        is(total($apache, 'RefusedDisplaced'), $_, '... displaced');
        is_figures($apache, 2, 4, '... and waits there');
        $other;
    } 1 .. 3;
    is_passed_on($apache, shift @loop, $others[0], 'the first one is next');
    is_passed_on($apache, shift @loop, $others[1], '... then the second');
    is_over($apache, @others, @loop);
    is(total($apache, 'Refused'), 4, 'no others were refused');
};

# As fast as it can, on eight connections, while others look at the same page.
topic 'a client that loops' => sub {
    my $apache = start(budget => 2, length => 4);
    is_known($apache, 10, '/page.php?ms=5', 5);
    my @loop = map { send_from($apache, 10, '/page.php?ms=5') } 1 .. 8;
    my (%loop, %others);
    my @others = map { [$_, 0, send_from($apache, $_, '/page.php?ms=5')] }
        21 .. 24;

    while (@others) {
        for my $one (@loop) {
            next if !$one->ready;
            $loop{ $one->response->{status} }++;
            $one = send_from($apache, 10, '/page.php?ms=5');
        }
        for my $other (@others) {
            next if !$other->[2]->ready;
            $others{ $other->[2]->response->{status} }++;
            $other->[2] = ++$other->[1] < 25
                ? send_from($apache, $other->[0], '/page.php?ms=5') : undef;
        }
        @others = grep { $_->[2] } @others;
        sleep 0.0005;
    }
    $loop{ $_->response->{status} }++ for @loop;
    diag 'the loop: ', join ', ', map { "$loop{$_} x $_" } sort keys %loop;
    is_deeply(\%others, { 200 => 100 }, 'all pages of the others are served');
    is_deeply([sort keys %loop], [200, 503], 'the loop is refused, or served');
    is_figures($apache, 0, 0, 'the end');
};

# It asks ten times as often as others do.
topic 'a loop leaves a token to others' => sub {
    my $apache = start(budget => 4, length => 8);
    is_known($apache, 10, '/page.php', 200);
    is_deeply([grep { $_ != 200 }
        map { status_from($apache, 20 + $_, '/page.php') } 1 .. 14], [],
        'fourteen others look at a page each');
    # Loads are summed up every quarter of a second.
    is_known($apache, 40, '/heavy.php?ms=300');
    my @loop = map { gated($apache, 10, '/page.php') } 1 .. 5;
    is_figures($apache, 3, 2, 'it may not have the last token');
    my $other = gated($apache, 20, '/page.php');
    is_figures($apache, 4, 2, 'another client may');
    is_over($apache, $other, @loop);
};

topic 'made-up paths' => sub {
    my $apache = start(budget => 4, length => 12);
    is_known($apache, 20, '/page.php', 25);
    my $name = 'aaaa';
    # More than the table of endpoints has places for.
    is_deeply([grep { $_ != 200 }
        map { status_from($apache, 10, '/made/up/' . $name++) } 1 .. 1100], [],
        'eleven hundred paths that nobody has heard of');
    is(status_from($apache, 20, '/page.php'), 200, 'a page that is known');

    my @new = map { gated($apache, 10, '/made/up/' . $name++) } 1 .. 9;
    is_figures($apache, 3, 6, 'whatever they are, they count as heavy work');
    in_order($apache, 3);
    is_deeply([grep { $_ != 200 }
        map { status_from($apache, 20, '/page.php') } 1 .. 20], [],
        'the page is served beside them');
    is(scalar(began($apache)), 3, '... before those that wait');
    my $page = gated($apache, 20, '/page.php');
    is_figures($apache, 4, 6, 'with the last token');
    is_over($apache, $page, @new);
    is(total($apache, 'Refused'), 0, 'nobody was refused');
};

# When a refused client may come: from when to when, by what it was told and
# what the clock was before and after.
sub promise
{
    my ($apache, $client, %headers) = @_;
    my $begin = time;
    my $answer = send_from($apache, $client, '/heavy.php', %headers)->response;
    my $after = $answer->{headers}{'dbguard-retry-after'} / 1000;

    is($answer->{status}, 503, "client $client is refused");
    return ($begin + $after, time + $after + 0.001);
}

topic 'to come when one is told' => sub {
    my $apache = start(budget => 1, length => 3);
    my %early = (Cookie => 'PHPSESSID=early');
    my %punctual = (Cookie => 'PHPSESSID=punctual');
    is_known($apache, 1, '/heavy.php?ms=1500');
    my $holder = gated($apache, 2, '/heavy.php');
    is_figures($apache, 1, 0, 'one holds');
    my @waiters = map { gated($apache, 2 + $_, '/heavy.php') } 1 .. 3;
    is_figures($apache, 1, 3, 'all places are taken');

    my @first = promise($apache, 10, %punctual);
    my @promises = (\@first, map { [promise($apache, 10 + $_)] } 1 .. 4);
    my @last = promise($apache, 20, %early);
    push @promises, \@last;
    is_deeply([grep { $promises[$_][1] < $promises[$_ - 1][0] + 1 }
        1 .. $#promises], [], 'each is told a later time');
    my @again = promise($apache, 20, %early);
    ok($again[0] <= $last[1] && $last[0] <= $again[1],
        'who comes too early is told the same time again');

    $_->[0]->close for @waiters;
    is_figures($apache, 1, 0, 'the places are free');
    my $early = gated($apache, 20, '/heavy.php', %early);
    is_figures($apache, 1, 1, 'one comes too early');
    my $new = gated($apache, 30, '/heavy.php');
    is_figures($apache, 1, 2, '... one for the first time');
    my $left = $first[1] - time;
    sleep $left if $left > 0;
    my $punctual = gated($apache, 10, '/heavy.php', %punctual);
    is_figures($apache, 1, 3, '... one when it was told to');
    is_passed_on($apache, $holder, $punctual, 'the punctual one is first');
    is_passed_on($apache, $punctual, $new, '... then the new one');
    is_passed_on($apache, $new, $early, '... then the early one');
    is_over($apache, $early);
};

# What the logs and the totals say of a refusal.
sub is_refused
{
    my ($apache, $reason, $path, $n) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my @entries = wait_until(sub {
        my @all = grep { $_->{verdict} eq "refused($reason)" }
            $apache->access_entries;
        @all >= $n && \@all;
    }, 10, "$n lines of refused($reason)")->@*;

    is(scalar @entries, $n, "$reason: $n in the access log");
    is_deeply([grep { $_->{endpoint} ne "GET $path" || $_->{status} != 503 }
        @entries], [], "... all of $path");
    my $lines = () = $apache->error_log
        =~ /DBGUARD0020: refused\(\Q$reason\E\) after \d+ us: GET \Q$path\E$/mg;
    is($lines, $n, '... in the error log');
    is(total($apache, 'Refused' . ucfirst $reason), $n, '... in the totals');
}

topic 'the reasons' => sub {
    my $apache = start(budget => 1, length => 2,
        config => "DBGuardClient wait=1\n");
    is_known($apache, 1, '/heavy.php?ms=300');
    is_known($apache, 1, '/page.php', 5);

    my $holder = gated($apache, 2, '/heavy.php');
    is_figures($apache, 1, 0, 'one holds');
    my %session = (Cookie => 'PHPSESSID=one');
    my @waiters = gated($apache, 3, '/heavy.php', %session);
    is_figures($apache, 1, 1, 'one waits');
    is(status_from($apache, 3, '/heavy.php', %session), 503,
        'it wants to wait in a second place');
    is_refused($apache, 'client', '/heavy.php', 1);

    push @waiters, gated($apache, 4, '/heavy.php');
    is_figures($apache, 1, 2, 'another one waits');
    is(status_from($apache, 5, '/heavy.php'), 503, 'places are taken');
    is_refused($apache, 'budget', '/heavy.php', 1);

    my $page = gated($apache, 6, '/page.php');
    is((statuses(pop @waiters))[0], 503, 'a page needs the place more');
    is_refused($apache, 'displaced', '/heavy.php', 1);
    is_over($apache, $holder, $page, @waiters);
    is(total($apache, 'Refused'), 3, 'that is all');
};

topic 'nobody waits in vain' => sub {
    my $apache = start(budget => 1, length => 20, patience => '3s');
    is_known($apache, 1, '/heavy.php?ms=500');
    my $holder = gated($apache, 2, '/heavy.php');
    is_figures($apache, 1, 0, 'one holds');
    # Each of those before it will take half a second, or more.
    my @all;
    wait_until(sub {
        push @all, send_from($apache, 3 + @all, '/heavy.php');
        @all > 20 || total($apache, 'RefusedPatience') > 0;
    }, 10, 'the first one to be refused at once');
    my @early = grep { $_->ready } @all;
    is(scalar @early, 1, 'one is refused');
    is($early[0], $all[-1], '... the last one');
    cmp_ok(scalar @all, '<=', 9, '... long before the places are used up');
    cmp_ok(scalar @all, '>', 1, '... and some wait');
    is_refused($apache, 'patience', '/heavy.php', 1);
    is_deeply([grep { $_->response->{status} != 503 } @all], [],
        'then the patience of the others ends');
    is_refused($apache, 'timeout', '/heavy.php', @all - 1);
    is_over($apache, $holder);
};

topic 'DBGuardClient hold' => sub {
    my $apache = start(budget => 4, length => 8, patience => '2s',
        config => "DBGuardClient hold=1\n");
    my @many = map { gated($apache, 10, '/photo.php') } 1 .. 2;
    is_figures($apache, 2, 0, 'up to half of the budget for anybody');
    is(status_from($apache, 10, '/photo.php'), 503, 'no more for one client');
    is_refused($apache, 'client', '/photo.php', 1);
    my $other = gated($apache, 20, '/photo.php');
    is_figures($apache, 3, 0, '... but for another one');
    is_over($apache, @many, $other);
};

topic 'a lease ends' => sub {
    my $apache = start(budget => 1, length => 4, config => <<'END');
DBGuardClass long hold=1s
<Location /photo.php>
DBGuard long
</Location>
END
    my $photo = gated($apache, 10, '/photo.php');
    is_figures($apache, 1, 0, 'one holds, for a second');
    my @waiters = map { gated($apache, 20 + $_, '/page.php') } 1, 2;
    wait_until(sub { began($apache) == 2 }, 10, 'its token to come back');
    ok(!$photo->[0]->ready, 'its request runs on');
    is_figures($apache, 1, 1, 'who waited first has the token');
    open_gate($apache, @waiters);
    is_deeply([statuses(@waiters)], [200, 200], 'all are served');
    is_figures($apache, 0, 0, 'the token is back');
    my $released = total($apache, 'Released');
    is_over($apache, $photo);
    is(total($apache, 'Released'), $released, '... once');
};

done_testing;
