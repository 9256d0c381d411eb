# The path of a request and the refusal under worker and event: one token for
# each request whichever way it takes, connections that go on after a refusal,
# and clients that hang up while they wait, over HTTP/1.1 and HTTP/2.
# 15_threads.t has the limit, crashes and restarts.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use DBGuard::Stack qw(spew wait_until);

my %files = (
    # Waits until the file that it is asked with is there.
    'hold.cgi' => <<'END',
#!/bin/sh
echo; echo begun
while [ ! -e "$QUERY_STRING" ]; do sleep 0.02; done
END
    'x.cgi' => "#!/bin/sh\necho Content-Type: text/plain; echo; echo ran\n",
    'env.cgi' => "#!/bin/sh\necho; echo \$DBGUARD_VERDICT\n",
    'redirect.cgi' => "#!/bin/sh\necho Location: /env.cgi; echo\n",
    'two.shtml' => '(<!--#include virtual="x.cgi"-->, '
        . '<!--#include virtual="x.cgi?2"-->)',
    'error/here' => '',
    's.txt' => 'static',
);
my $has_http2 = grep({ -x "$_/curl" } split /:/, $ENV{PATH})
    && `curl -V` =~ /\bHTTP2\b/;

sub check
{
    my ($mpm) = @_;
    my $stack = DBGuard::Stack->start(apache => {
        mpm => $mpm, workers => 16, threads => 8, cgi => 1, http2 => 1,
        modules => ['include'], files => \%files,
        docroot_config => "DBGuard On\nOptions +Includes\n", config => <<'END',
DBGuardEngine On
DBGuardBudget 1
DBGuardQueue length=1 patience=30s
DBGuardRefusal status=429
AddType text/html .shtml
AddOutputFilter INCLUDES .shtml
<Directory ${DOCROOT}/error>
ErrorDocument 404 /x.cgi
</Directory>
END
    });
    my $apache = $stack->apache;
    my $gate = $apache->dir . '/run/gate';
    my $auto = sub { $apache->status_auto->{"DBGuard$_[0]"} };
    my $wait_for = sub {
        my ($held, $waiting) = @_;
        wait_until(sub {
            my $now = $apache->status_auto;
            $now->{DBGuardHeld} == $held && $now->{DBGuardWaiting} == $waiting;
        }, 20, "$held to hold and $waiting to wait");
    };

    # With a budget of 1, whoever asked twice would wait for itself.
    is($apache->get('/two.shtml')->{body}, "(ran\n, ran\n)",
        'a page that includes two');
    is($apache->get('/redirect.cgi')->{body}, "admitted\n", 'a local redirect');
    is($apache->get('/error/nothing')->{body}, "ran\n", 'an ErrorDocument');
    $wait_for->(0, 0);
    is($auto->('WaitedTotal'), 0, 'nobody waited');
    is($auto->('HeldPeak'), 1, 'one at a time');

    my $holder = $apache->get_async("/hold.cgi?$gate");
    $wait_for->(1, 0);
    my $waiter = $apache->get_async('/x.cgi');
    $wait_for->(1, 1);
    my $refused = $apache->get('/x.cgi');
    is($refused->{status}, 429, 'refused when there is no place');
    is($refused->{headers}{'content-length'}, length $refused->{body},
        '... its length');
    my $first = $apache->open_request('POST', '/x.cgi', body => 'a=b',
        keepalive => 1);
    is($first->response->{status}, 429, 'keep-alive: refused');
    my $second = $apache->open_request('GET', '/s.txt',
        socket => $first->socket);
    is($second->response->{body}, 'static', '... and the next is served');
    $waiter->close;
    $wait_for->(1, 0);
    pass('a client that hangs up leaves the queue');

    SKIP: {
        skip 'no curl with HTTP/2', 2 if !$has_http2;
        my $curl = DBGuard::Process->spawn(output => '/dev/null',
            command => ['curl', '-s', '--http2-prior-knowledge',
                $apache->url('/x.cgi')]);
        $wait_for->(1, 1);
        pass('HTTP/2: one waits');
        $curl->stop('KILL', 10);
        $wait_for->(1, 0);
        pass('... and leaves when its client does');
    }
    spew($gate, '');
    is($holder->response->{status}, 200, 'the holder');
    $wait_for->(0, 0);
    is($auto->('RepairsTotal'), 0, 'nothing had to be repaired');
    $apache->stop;
}

for my $mpm (qw(worker event)) {
    subtest $mpm => sub { check($mpm) };
}

done_testing;
