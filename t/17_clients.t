# Clients: a session may have so many waiting places and no more, whatever its
# cookie looks like; an address is the one that mod_remoteip tells, of IPv6 its
# prefix; and forged cookies gain nothing at the expense of another address.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use DBGuard::Stack qw(spew wait_until);
use DBGuard::Topic qw(topic ends_with_topic is_figures);

my %files = (
    'gate.php' => <<'END',
<?php
$gate = dirname(__DIR__) . '/sessions/gate';
$end = hrtime(true) + 120e9;
while (!file_exists($gate) && hrtime(true) < $end) {
    usleep(5000);
    clearstatcache();
}
echo 'ran';
END
);

# A server whose only token is taken: with so many waiting places.
sub start
{
    my ($places, $config) = @_;
    my $stack = ends_with_topic(DBGuard::Stack->new(apache => {
        workers => $places + 8, php => 1, files => \%files,
        modules => ['remoteip'], docroot_config => 'DBGuard On',
        config => <<"END" . ($config // ''),
DBGuardEngine On
DBGuardBudget 1
DBGuardQueue length=$places patience=10min
RemoteIPHeader X-Forwarded-For
RemoteIPInternalProxy 127.0.0.1
END
    }));
    my $apache = $stack->start->apache;
    my $holder = ask($apache, '192.0.2.1');
    is_figures($apache, 1, 0, 'the token is taken');
    return ($apache, $holder);
}

my $asked = 0;
my @asked; # who goes out of scope hangs up

# A request from an address, under way; cookies are headers of their own.
sub ask
{
    my ($apache, $address, @cookies) = @_;
    my $url = '/gate.php?' . ++$asked;
    my $self = $apache->open_request('GET', $url, headers => {
        'X-Forwarded-For' => $address,
        @cookies ? (Cookie => join "\r\nCookie: ", @cookies) : () });
    push @asked, { request => $self, url => $url };
    return $asked[-1];
}

# What becomes of it: 'waits', or the verdict.
sub fate
{
    my ($apache, $asked, $waiting) = @_;
    return wait_until(sub {
        return 'waits' if $apache->status_auto->{DBGuardWaiting} > $waiting;
        return if !$asked->{request}->ready;
        return verdict($apache, $asked);
    }, 10, 'a wait or an answer');
}

sub verdict
{
    my ($apache, $asked) = @_;
    my $line = wait_until(sub {
        (grep { $_->{request} =~ /\Q$asked->{url}\E / }
            $apache->access_entries)[-1];
    }, 10, 'its line in the log');
    return $line->{verdict};
}

# One more that waits, or not.
sub next_is
{
    my ($apache, $fate, $what, @arg) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $waiting = $apache->status_auto->{DBGuardWaiting};
    my $asked = ask($apache, @arg);
    is(fate($apache, $asked, $waiting), $fate, $what);
    return $asked;
}

sub open_gate
{
    my ($apache) = @_;
    @asked = ();
    spew($apache->dir . '/sessions/gate', '');
}

topic 'two waiting places a session' => sub {
    my ($apache, $holder) = start(8);
    my @cookie = ('192.0.2.7', 'PHPSESSID=abcdef');
    my @waiters = (
        next_is($apache, 'waits', 'its first request', @cookie),
        next_is($apache, 'waits', 'its second one', @cookie));
    my $third = next_is($apache, 'refused(client)', 'its third one', @cookie);
    is($third->{request}->response->{status}, 503, '... has an answer at once');
    is($apache->status_auto->{DBGuardRefusedClientTotal}, 1, '... is counted');
    push @waiters,
        next_is($apache, 'waits', 'another session of the address',
            '192.0.2.7', 'PHPSESSID=ghijkl'),
        next_is($apache, 'waits', 'no session', '192.0.2.7'),
        next_is($apache, 'waits', 'again no session', '192.0.2.7'),
        next_is($apache, 'waits', 'and again', '192.0.2.7');
    open_gate($apache);
    is_deeply([grep { $_->{request}->response->{status} != 200 }
        $holder, @waiters], [], 'all that waited are served');
};

topic 'none, and as many as it likes' => sub {
    my ($apache) = start(8, "DBGuardClient wait=0\n");
    next_is($apache, 'waits', "request $_ of a session", '192.0.2.7',
        'PHPSESSID=abcdef') for 1 .. 4;
    open_gate($apache);
};

# What makes two requests one session, with one waiting place: pairs.
my $long = 'x' x 3900;
my $id = '0123456789abcdef';
my @one = (
    ['PHPSESSID=a', 'PHPSESSID=a'],
    ['JSESSIONID=a', 'x=1; JSESSIONID=a; y=2'],
    ['ASP.NET_SessionId=a', 'z=1;ASP.NET_SessionId=a'],
    ['laravel_session=a', "laravel_session=a; XSRF-TOKEN=$long"],
    ['wordpress_logged_in_0123=a', "_ga=$long; wordpress_logged_in_0123=a"],
    ['SESS0123456789abcdef=a', 'has_js=1; SESS0123456789abcdef=a'],
    ['SSESS0123456789abcdef=a', 'SSESS0123456789abcdef=a '],
    ["_app_session=$id", "other=b, _app_session=$id"],
    ["session=$id", "session=$id"],
    ["${id}0123456789abcdef=$id", "u=1; ${id}0123456789abcdef=$id; v=2"],
    ['connect.sid="a b"', 'x="1"; connect.sid="a b"'],
    ['__Host-PHPSESSID=a', '__Host-PHPSESSID=a; x'],
    ['fe_typo_user=a', '; ;=; fe_typo_user=a;;'],
    ['mine=a', 'PHPSESSID=other; mine=a'],
    ['app42=a', 'PHPSESSID=a; app42=a; sid=b'],
    # What comes after the first kilobyte of one does not matter.
    ["PHPSESSID=$long-a", "PHPSESSID=$long-b"],
);
my @two = (
    ['_app_session=short', '_app_session=short'],
    ['session=yes', 'session=yes'],
    ["${id}0123456789abcde=$id", "${id}0123456789abcde=$id"],
    ['PHPSESSID=a', 'PHPSESSID=b'],
    ['PHPSESSID=a', 'JSESSIONID=a'],
    ['phpsessid=a', 'phpsessid=a'],
    ['_ga=1.2.3', '_ga=1.2.3'],
    ['PHPSESSID', 'PHPSESSID'],
    ['PHPSESSID=', 'PHPSESSID='],
    ['PHPSESSID=  ', 'PHPSESSID=  '],
    ['PHPSESSID=""', 'PHPSESSID=""'],
    ['=a', '=a'],
    ['SESSION2=a', 'SESSION2=a'],
    ['wordpress_logged_in_=', 'wordpress_logged_in_='],
    ['mine=a; PHPSESSID=x', 'mine=b; PHPSESSID=x'],
    ['xPHPSESSID=a', 'xPHPSESSID=a'],
    ["\xff\x80=a; ;;==;", "\xff\x80=a; ;;==;"],
    [";,; \t,=$long", ";,; \t,=$long"],
);

topic 'what is a session' => sub {
    my ($apache) = start(2 * (@one + @two),
        "DBGuardClient wait=1 session=mine,app*\n");
    my $n = 0;
    for my $pair (@one, @two) {
        my @address = '198.51.100.' . ++$n;
        my $same = $n <= @one;
        # Sessions are sessions, whatever address they come from.
        $_ =~ s/=([ab])\b/=$1$n/g for @$pair;
        my ($first, $second) = map { length > 60 ? substr($_, 0, 60) . '...'
            : $_ } @$pair;
        next_is($apache, 'waits', $first, @address, $pair->[0]);
        next_is($apache, $same ? 'refused(client)' : 'waits',
            "$second: " . ($same ? 'the same' : 'another or none'), @address,
            $pair->[1]);
    }
    next_is($apache, 'waits', 'a header of its own', '198.51.100.99',
        'x=1', 'PHPSESSID=own', 'y=2');
    next_is($apache, 'refused(client)', '... is the same', '198.51.100.99',
        'PHPSESSID=own');
    open_gate($apache);
};

topic 'forged cookies' => sub {
    my ($apache, $holder) = start(4);
    my $bad = '203.0.113.66';
    my @forged = map { next_is($apache, 'waits', "forged cookie $_", $bad,
        "PHPSESSID=forged$_") } 1 .. 4;
    next_is($apache, 'refused(budget)', 'one more displaces none of its own',
        $bad, 'PHPSESSID=forged5');
    my $good = ask($apache, '203.0.113.7', 'PHPSESSID=real');
    is(verdict($apache, $forged[3]), 'refused(displaced)',
        'another address has a place, at the expense of the newest');
    is($apache->status_auto->{DBGuardWaiting}, 4, 'all places are taken');
    next_is($apache, 'refused(budget)', "forged cookie $_ displaces nobody",
        $bad, "PHPSESSID=forged$_") for 6 .. 20;
    ok(!$good->{request}->ready, 'the other one still waits');
    open_gate($apache);
    is_deeply([map { $_->{request}->response->{status} } $holder, $good,
        @forged], [200, 200, 200, 200, 200, 503], 'all that waited are served');
    my @order = map { $_->{request} =~ /\?(\d+) / ? $1 : () }
        grep { $_->{verdict} eq 'waited' } $apache->access_entries;
    my ($turn) = grep { "/gate.php?$order[$_]" eq $good->{url} } 0 .. $#order;
    cmp_ok($turn, '<=', 1, 'the other address before all but one of them');
};

# Two places, taken by an address; who comes has one or is refused.
sub is_other
{
    my ($config, $first, $second, $other) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my ($apache) = start(2, $config);
    my @waiters = map { next_is($apache, 'waits', $first, $first) } 1, 2;
    my $asked = ask($apache, $second);
    if ($other) {
        is(verdict($apache, $waiters[1]), 'refused(displaced)',
            "$second is another address");
    }
    else {
        is(verdict($apache, $asked), 'refused(budget)',
            "$second is the same address");
    }
    my (undef, $list) = $apache->ctl('status');
    like($list, qr/\Q$first\E/, 'dbguardctl shows the whole address');
    open_gate($apache);
}

topic 'IPv4' => sub {
    is_other('', '192.0.2.20', '192.0.2.20', 0);
};
topic 'IPv4, another' => sub {
    is_other('', '192.0.2.20', '192.0.2.21', 1);
};
topic 'IPv6, the same network' => sub {
    is_other('', '2001:db8:1:1::1', '2001:db8:1:1:ffff::2', 0);
};
topic 'IPv6, another network' => sub {
    is_other('', '2001:db8:1:1::1', '2001:db8:1:2::1', 1);
};
topic 'IPv6, a shorter prefix' => sub {
    is_other("DBGuardClient ipv6-prefix=61\n", '2001:db8:1:1::1',
        '2001:db8:1:7::1', 0);
};
topic 'IPv6, beyond a shorter prefix' => sub {
    is_other("DBGuardClient ipv6-prefix=61\n", '2001:db8:1:1::1',
        '2001:db8:1:8::1', 1);
};
topic 'IPv6, single addresses' => sub {
    is_other("DBGuardClient ipv6-prefix=128\n", '2001:db8:1:1::1',
        '2001:db8:1:1::2', 1);
};

done_testing;
