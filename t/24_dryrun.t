# DBGuardEngine DryRun: nobody is refused and nobody waits; everything is
# decided, recorded and shown as On would have decided it; and nobody can
# overlook that the database is not protected.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use DBGuard::Stack qw(spew wait_until);

my $limits = "DBGuardBudget 2\nDBGuardQueue length=1 patience=20s\n";
my $stack = DBGuard::Stack->new(apache => {
    workers => 10, php => 1, docroot_config => 'DBGuard On',
    files => {
        'hold.php' => '<?php touch("$_GET[gate].runs"); '
            . 'while (!file_exists($_GET["gate"])) usleep(5000); '
            . 'echo $_SERVER["DBGUARD_VERDICT"];',
        'x.php' => '<?php echo $_SERVER["DBGUARD_VERDICT"];',
    },
});
my $apache = $stack->apache;

sub total { $apache->status_auto->{"DBGuard$_[0]Total"} }

# Where the n-th one's gate is, closed.
sub new_gate
{
    my ($name) = @_;
    my $gate = $apache->dir . "/sessions/gate.$name";
    unlink $gate, "$gate.runs";
    return $gate;
}

# The last of n who came, at this gate, has been admitted or refused, or waits.
# With DryRun it runs, whatever On would have done.
sub wait_arrived
{
    my ($n, $gate) = @_;
    wait_until(sub {
        my $auto = $apache->status_auto;
        return $auto->{DBGuardDryRun}
            ? -e "$gate.runs"
            : $auto->{DBGuardAdmittedTotal} + $auto->{DBGuardRefusedTotal}
                + $auto->{DBGuardWaiting} == $n;
    }, 10, "$n to have come");
}

# Waits for the end of that one, which is its line in the log.
sub wait_gone
{
    my ($who, $request) = @_;
    $request->response;
    return wait_until(sub {
        (grep { $_->{request} =~ /&$who / } $apache->access_entries)[0];
    }, 10, "the end of $who")->{verdict};
}

# Plays a scene: a letter comes, and leaves where it is in upper case. Returns
# each one's verdict.
sub play
{
    my ($scene) = @_;
    my (%request, %gate);
    my $come = 0;

    for my $who (split //, $scene) {
        if ($who eq lc $who) {
            $gate{$who} = new_gate($who);
            $request{$who}
                = $apache->get_async("/hold.php?gate=$gate{$who}&$who");
            wait_arrived(++$come, $gate{$who});
        }
        else {
            spew($gate{ lc $who }, '');
            wait_gone(lc $who, $request{ lc $who });
        }
    }
    spew($_, '') for values %gate;
    return { map { $_ => wait_gone($_, $request{$_}) } keys %request };
}

# The verdicts of a scene from a server that is started for it.
sub verdicts
{
    my ($engine, $scene) = @_;
    unlink $apache->dir . '/log/access.log';
    $apache->set(config => "DBGuardEngine $engine\n$limits");
    $apache->start;
    my $verdicts = play($scene);
    $apache->stop;
    return $verdicts;
}

# a and b have the tokens, c waits, d is refused.
subtest 'nobody is refused, nobody waits' => sub {
    $apache->set(config => "DBGuardEngine DryRun\n$limits");
    $apache->start;
    my @gates = map { new_gate($_) } 1 .. 5;
    my @requests = map {
        my $request = $apache->get_async("/hold.php?gate=$gates[$_ - 1]");
        wait_arrived($_, $gates[$_ - 1]);
        $request;
    } 1 .. 5;
    is(scalar(grep { -e "$_.runs" } @gates), 5, 'all run at once');
    my $auto = $apache->status_auto;
    is($auto->{DBGuardHeld}, 2, 'so many would hold a token');
    is($auto->{DBGuardWaiting}, 1, '... and so many would wait');
    is($auto->{DBGuardDryRun}, 1, '?auto says DryRun');
    like($apache->get('/server-status')->{body}, qr/DryRun: nobody is refused/,
        'the page says so');
    my ($code, $text) = $apache->ctl('status');
    is($code, 0, 'dbguardctl');
    like($text, qr/DryRun: NOBODY IS REFUSED/, '... says so');

    # Who would have waited would have its token when the first one ends.
    spew($gates[0], '');
    my @answers = ($requests[0]->response);
    wait_until(sub { $apache->status_auto->{DBGuardWaiting} == 0 }, 10,
        'the first to end');
    is($apache->status_auto->{DBGuardHeld}, 2, 'its token would be passed on');
    spew($_, '') for @gates;
    push @answers, map { $_->response } @requests[1 .. 4];
    is_deeply([map { $_->{status} } @answers], [(200) x 5], 'all are served');
    is_deeply([map { $_->{body} } @answers],
        ['admitted', 'admitted', 'dryrun(waited)', ('dryrun(budget)') x 2],
        'PHP knows what On would have said');
    my @entries = wait_until(sub {
        my @all = grep { $_->{request} =~ /hold/ } $apache->access_entries;
        @all == 5 && \@all;
    }, 10, 'five lines in the log')->@*;
    is_deeply([sort map { $_->{verdict} } @entries],
        ['admitted', 'admitted', ('dryrun(budget)') x 2, 'dryrun(waited)'],
        'so does the access log');
    # A token that came back counts for 3 ms more; nothing here waits longer.
    is_deeply([grep { $_->{wait} > 0 } @entries], [], 'nobody was delayed');

    $auto = $apache->status_auto;
    is($auto->{"DBGuard${_}Total"}, { Admitted => 3, Refused => 0, Waited => 1,
        Released => 3, DryRunWaited => 1, DryRunRefused => 2 }->{$_}, $_)
        for qw(Admitted Refused Waited Released DryRunWaited DryRunRefused);
    is($auto->{DBGuardHeld}, 0, 'held ends at zero');
    my $log = $apache->error_log;
    like($log, qr/:warn\].*DBGUARD0014:.*NOT protected/, 'a warning at start');
    is(scalar(() = $log =~ /DBGUARD0023: dryrun\(budget\)/g), 2,
        'a line for each that would have been refused');
    is(scalar(() = $log =~ /DBGUARD0023: dryrun\(waited\)/g), 1,
        '... and would have waited');
    unlike($log, qr/DBGUARD0020/, 'none for a refusal');
    $apache->stop;
};

# What On does to those who come, DryRun says of those who come: also when
# somebody runs whom On has sent away.
for my $scene (qw(abcd abAcB abcAd abcdAe abcdADefg aAbBcC)) {
    my $on = verdicts('On', $scene);
    my $dry = verdicts('DryRun', $scene);
    my %expected = map {
        $_ => $on->{$_} =~ s/^waited$/dryrun(waited)/r
            =~ s/^refused/dryrun/r;
    } keys %$on;
    is_deeply($dry, \%expected, "the scene $scene");
}

subtest 'from DryRun to On and back, without a stop' => sub {
    $apache->set(config => "DBGuardEngine DryRun\n$limits" =~ s/=1/=0/r);
    $apache->start;
    my @gates = map { new_gate($_) } 1 .. 4;
    my @requests = map { $apache->get_async("/hold.php?gate=$_") } @gates;
    wait_arrived(4, $_) for @gates;
    $apache->set(config => "DBGuardEngine On\n$limits" =~ s/=1/=0/r);
    $apache->restart('graceful');
    is($apache->status_auto->{DBGuardDryRun}, 0, 'On');
    is($apache->status_auto->{DBGuardHeld}, 4, 'those above the budget go on');
    is($apache->get('/x.php')->{status}, 503, 'nobody else comes in');
    for my $i (0 .. 2) {
        spew($gates[$i], '');
        $requests[$i]->response;
        wait_until(sub { $apache->status_auto->{DBGuardHeld} == 3 - $i }, 10,
            'a token');
        is($apache->get('/x.php')->{status}, $i < 2 ? 503 : 200,
            3 - $i . ' of 2 are out');
    }
    $apache->set(config => "DBGuardEngine DryRun\n$limits" =~ s/=1/=0/r);
    $apache->restart('graceful');
    spew($gates[3], '');
    is($requests[3]->response->{status}, 200, 'the last one');
    wait_until(sub { $apache->status_auto->{DBGuardHeld} == 0 }, 10, 'zero');
    is($apache->status_auto->{DBGuardDryRun}, 1, 'DryRun again');
    $apache->stop;
};

done_testing;
