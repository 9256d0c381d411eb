# What the logs say of a request: the items %^DV, %^DW, %^DH, %^DC and %^DE, the
# same in the environment, and that nobody can write a line of his own with
# them. The sample configuration with its log format works.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use IO::Socket::INET;
use JSON::PP;
use DBGuard::Stack qw(slurp sourcedir spew wait_until);

my $config = <<'END';
DBGuardEngine On
DBGuardBudget 1
DBGuardQueue length=1 patience=20s
LogFormat "%{DBGUARD_VERDICT}e %{DBGUARD_WAIT}e %{DBGUARD_HOLD}e \
%{DBGUARD_CLASS}e \"%{DBGUARD_ENDPOINT}e\"" env
CustomLog log/env.log env
END
my $stack = DBGuard::Stack->start(apache => {
    workers => 6, php => 1, config => $config,
    docroot_config => "DBGuard On\nFallbackResource /app.php\n",
    files => {
        'hold.php' => '<?php while (!file_exists($_GET["gate"])) usleep(5000); '
            . 'echo "$_SERVER[DBGUARD_VERDICT] $_SERVER[DBGUARD_WAIT]";',
        'app.php' => '<?php echo json_encode(array_filter($_SERVER, fn($k) => '
            . 'str_starts_with($k, "DBGUARD_"), ARRAY_FILTER_USE_KEY));',
        's.txt' => 'static',
    },
});
my $apache = $stack->apache;
my $gates = 0;

# Is this a line of the log that is made from the environment?
sub in_env_log
{
    my ($line) = @_;
    return eval {
        wait_until(sub {
            slurp($apache->dir . '/log/env.log') =~ /^\Q$line\E$/m;
        }, 5, 'that line');
    };
}

sub entry
{
    my ($regex) = @_;
    return wait_until(sub {
        (grep { $_->{request} =~ $regex } $apache->access_entries)[-1];
    }, 10, "a line for $regex");
}

sub hold
{
    my $gate = $apache->dir . '/run/gate.' . $gates++;
    my $request = $apache->get_async("/hold.php?gate=$gate");
    wait_until(sub { $apache->status_auto->{DBGuardHeld} == 1 }, 10,
        'a holder');
    return ($gate, $request);
}

subtest 'admitted' => sub {
    my $answer = $apache->get('/orders/123/reset?a=b');
    is_deeply(decode_json($answer->{body}), {
        DBGUARD_VERDICT => 'admitted', DBGUARD_WAIT => '0',
        DBGUARD_CLASS => 'default',
        DBGUARD_ENDPOINT => 'GET /orders/*/reset',
    }, 'what PHP sees');
    my $entry = entry(qr/reset/);
    is($entry->{verdict}, 'admitted', '%^DV');
    is($entry->{wait}, 0, '%^DW');
    like($entry->{hold}, qr/^\d+$/, '%^DH');
    cmp_ok($entry->{hold}, '<=', $entry->{us}, '... within the request');
    is($entry->{class}, 'default', '%^DC');
    is($entry->{endpoint}, 'GET /orders/*/reset', '%^DE');
    ok(in_env_log("admitted 0 $entry->{hold} default "
        . '"GET /orders/*/reset"'), 'the same in the environment');
};

subtest 'not guarded' => sub {
    is($apache->get('/s.txt')->{body}, 'static', 'static');
    my $entry = entry(qr/s\.txt/);
    is($entry->{$_}, '-', $_) for qw(verdict wait hold class endpoint);
    ok(in_env_log('- - - - "-"'), 'nothing in the environment');
};

subtest 'waited' => sub {
    my ($gate, $holder) = hold();
    my $waiter = $apache->get_async("/hold.php?gate=$gate&waiter");
    wait_until(sub { $apache->status_auto->{DBGuardWaiting} == 1 }, 10,
        'a waiter');
    spew($gate, '');
    $holder->response;
    my ($verdict, $waited) = split ' ', $waiter->response->{body};
    my $entry = entry(qr/waiter/);
    is($entry->{verdict}, 'waited', '%^DV');
    is($entry->{wait}, $waited, '%^DW is what PHP saw');
    is($verdict, 'waited', '... and so is %^DV');
    cmp_ok($waited, '>', 0, '... some microseconds');
    cmp_ok($waited, '<=', $entry->{us}, '... and a part of the request');
    # The one came after the other had the token, and had it next; a token
    # that came back counts for 3 ms more.
    cmp_ok($waited, '<=', entry(qr/hold\.php\?gate=\S*\.\d HTTP/)->{hold}
        + 1_000_000, 'about as long as the other held');
};

subtest 'refused' => sub {
    my ($gate, $holder) = hold();
    my $waiter = $apache->get_async('/gone');
    wait_until(sub { $apache->status_auto->{DBGuardWaiting} == 1 }, 10,
        'a waiter');
    is($apache->get('/orders/9')->{status}, 503, 'no place is free');
    my $entry = entry(qr{/orders/9});
    is($entry->{verdict}, 'refused(budget)', 'refused(budget)');
    is($entry->{wait}, 0, '... it did not wait');
    is($entry->{hold}, '-', '... and held nothing');
    is($entry->{endpoint}, 'GET /orders/*', '... its endpoint');
    ok(in_env_log('refused(budget) 0 - default "GET /orders/*"'),
        '... the same in the environment');
    like($apache->error_log,
        qr/:info\].*DBGUARD0020: refused\(budget\).*orders/,
        'a line at level info');

    $waiter->close;
    $entry = entry(qr{/gone});
    is($entry->{verdict}, 'refused(aborted)', 'refused(aborted)');
    cmp_ok($entry->{wait}, '>', 0, '... after a while');
    is($entry->{hold}, '-', '... and held nothing');

    $apache->set(config => $config =~ s/20s/60ms/r);
    $apache->restart('graceful');
    my $late = $apache->get('/late');
    is($late->{status}, 503, 'patience ends');
    $entry = entry(qr{/late});
    is($entry->{verdict}, 'refused(timeout)', 'refused(timeout)');
    cmp_ok($entry->{wait}, '>=', 60_000, '... after it');
    is($entry->{hold}, '-', '... and held nothing');
    spew($gate, '');
    is($holder->response->{status}, 200, 'the holder');
};

subtest 'endpoints' => sub {
    my %folded = (
        '/' => '/', '/page/about' => '/page/about',
        '/orders/123/' => '/orders/*/', '/orders/123?x=/7/8' => '/orders/*',
        '/a//b///c' => '/a/b/c', '/v2/list' => '/v2/list',
        '/u/550e8400-e29b-41d4-a716-446655440000' => '/u/*',
        '/commit/deadbeef01' => '/commit/*', '/year/2024/12' => '/year/*/*',
        '/app.php/42/x' => '/app.php/*/x',
    );
    for my $path (sort keys %folded) {
        my $data = decode_json($apache->get($path)->{body});
        is($data->{DBGUARD_ENDPOINT}, "GET $folded{$path}", $path);
        is(entry(qr/^GET \Q$path\E /)->{endpoint}, "GET $folded{$path}",
            '... in the log');
    }
    $apache->post('/orders/5', 'a=b');
    is(entry(qr/^POST/)->{endpoint}, 'POST /orders/*', 'POST');
};

# Sends a request line as it is; returns the first line of the answer.
sub send_line
{
    my ($line) = @_;
    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
        PeerPort => $apache->port) or die "connect: $!";
    syswrite $socket, "$line\r\nHost: x\r\nConnection: close\r\n\r\n";
    my $answer = '';
    1 while sysread $socket, $answer, 65536, length $answer;
    return $answer =~ s/\r\n.*//sr;
}

my @hostile = (
    'GET /%0d%0aHTTP/1.1%20200 HTTP/1.1', 'GET /a%0Ab HTTP/1.1',
    'GET /%1b[31mred HTTP/1.1', 'GET /%00 HTTP/1.1', 'GET /a"b HTTP/1.1',
    'GET /%22%20-%20%22 HTTP/1.1', 'GET /x\\" HTTP/1.1', 'GET /\\n HTTP/1.1',
    "GET /a\tb HTTP/1.1", "GET /a\x01b HTTP/1.1", "GET /a\x7fb HTTP/1.1",
    "GET /a\rb HTTP/1.1", "GET /\xc3\xa4\xff HTTP/1.1",
    'GET /<script>alert(1)</script> HTTP/1.1', 'GET /%n%s%x HTTP/1.1',
    'GET /' . 'x' x 7000 . ' HTTP/1.1', 'GET ' . '/y' x 3000 . ' HTTP/1.1',
    'GET /' . '"' x 4000 . ' HTTP/1.1', "G\"T /x HTTP/1.1",
    'LONGMETHOD' . 'D' x 200 . ' /x HTTP/1.1', 'GET http://h/a"b?c HTTP/1.1',
    'GET //evil" "200" HTTP/1.1', 'OPTIONS * HTTP/1.1',
);

for my $state ('with a token free', 'refused') {
    subtest "hostile requests, $state" => sub {
        my ($gate, $holder) = $state eq 'refused' ? hold() : ();
        my $lines = sub {
            grep { !/server-status|hold\.php/ } $apache->access_log;
        };
        my $before = () = $lines->();
        my $errors = length $apache->error_log;
        for my $line (@hostile) {
            my $shown = substr $line, 0, 40;
            $shown =~ s/([^ -~])/sprintf '\\x%02x', ord $1/ge;
            like(send_line($line), qr/\AHTTP\/1\.1 \d+ /, "answered: $shown");
        }
        my @lines = wait_until(sub {
            my @new = $lines->();
            splice @new, 0, $before;
            @new >= @hostile && \@new;
        }, 10, 'a line for each')->@*;
        is(scalar(@lines), scalar(@hostile), 'each has one line');
        my $quoted = qr/"(?:[^"\\]|\\.)*"/;
        my $times = qr/[\d-]+ [\d-]+/;
        my @odd = grep {
            !/^\d+ \d+ [a-z()-]+ $times [a-z-]+ $quoted $quoted$/
        } @lines;
        is_deeply(\@odd, [], '... of the right form');
        is_deeply([grep { /[^ -~]/ } @lines], [], '... in printable ASCII');
        my @endpoints = map { /- ("(?:[^"\\]|\\.)*") "/ ? $1 : () } @lines;
        is_deeply([grep { length > 240 } @endpoints], [], '... not endless');
        my @guarded = grep { /refused|admitted/ } @lines;
        cmp_ok(scalar(@guarded), '>', 10, '... and most have met the guard');
        my $log = substr $apache->error_log, $errors;
        is_deeply([grep { !/^\[[^\]]+\] \[\w+:\w+\] \[pid / } split /\n/, $log],
            [], 'the error log has only its own lines');
        is_deeply([grep { /[^ -~]/ } split /\n/, $log], [], '... printable');
        my ($code, $status) = $apache->ctl('status');
        is($code, 0, 'dbguardctl status');
        unlike($status, qr/[^ -~\n]/, '... printable');
        if ($gate) {
            spew($gate, '');
            $holder->response;
        }
    };
}
$apache->stop;

subtest 'the sample configuration' => sub {
    my $sample = slurp(sourcedir() . '/conf/dbguard.conf');
    my $dir = $apache->dir;
    spew("$dir/conf/dbguard.conf", $sample);
    for my $mpm (qw(prefork event)) {
        my $test = DBGuard::Stack->new(apache => { mpm => $mpm,
            config => "Include $dir/conf/dbguard.conf" });
        my ($code, $output) = $test->apache->configtest;
        is($code, 0, "loads under $mpm") or diag($output);
        # But for the lint's, who misses what the operator has yet to write.
        unlike($output =~ s/^.*DBGUARD00[56]\d: lint: .*\n//mgr,
            qr/warn|error/i, '... without a word');
    }
    # Its examples are to be used by removing the mark.
    my $used = $sample
        =~ s{^#(?=</?\w+[ >]|    \w|CustomLog|LogLevel|DBGuardCl)}{}gmr
        =~ s{/var/log/apache2}{$dir/log}r =~ s{/var/www/shop}{$dir/www}r;
    isnt($used, $sample, 'it has examples');
    spew("$dir/conf/dbguard.conf", $used);
    $apache->set(docroot_config => 'FallbackResource /app.php',
        config => 'Include conf/dbguard.conf');
    my ($code, $output) = $apache->configtest;
    is($code, 0, 'its examples load') or diag($output);
    $apache->start;
    unlike($apache->error_log =~ s/.*AH00163//sr, qr/:(?:error|crit)\]/,
        'it starts');
    $apache->get('/orders/7');
    my $line = wait_until(sub {
        (grep { /orders/ } split /\n/, slurp("$dir/log/dbguard.log"))[0];
    }, 10, 'a line in its log');
    my $client = qr/\S+ 127\.0\.0\.1 "-" - \[[^]]+\]/;
    my $http = qr{"GET /orders/7 HTTP/1\.1" 200 \d+ \d+ [-+X]};
    like($line, qr{^$client $http admitted 0 \d+ default "GET /orders/\*"},
        'its log format');
    $apache->stop;
};

done_testing;
