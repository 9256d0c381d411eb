# The refusal, from the client's side: status, headers and body for browsers,
# scripts and machines; on every kind of connection; and that nothing else, PHP
# least of all, has run for it.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use IO::Socket::INET;
use JSON::PP;
use List::Util qw(uniq);
use DBGuard::Stack qw(spew slurp wait_until);

# What Firefox, Chrome and fetch() say they accept.
my $firefox = 'text/html,application/xhtml+xml,application/xml;q=0.9,'
    . 'image/avif,image/webp,*/*;q=0.8';
my $chrome = "$firefox,application/signed-exchange;v=b3;q=0.7";

my $stack = DBGuard::Stack->new(apache => {
    workers => 6, php => 1,
    modules => [qw(deflate filter headers rewrite include)],
    php_ini => { auto_prepend_file => '/nonexistent' },
    files => {
        'hold.php' => '<?php while (!file_exists($_GET["gate"])) usleep(5000);',
        'x.php' => '<?php echo "ran";',
        'app/index.php' => '<?php echo "front";',
        'page.shtml' => 'top, <!--#include virtual="x.php"-->, bottom',
        's.txt' => 'static',
    },
});
my $apache = $stack->apache;
my $dir = $apache->dir;

# PHP that runs leaves a mark, even if it is only the error page's.
spew("$dir/php/mark.php", '<?php if (strpos($_SERVER["SCRIPT_NAME"], "hold") '
    . '=== false) touch("' . $apache->docroot . '/mark/ran");');
mkdir $apache->docroot . '/mark';
chmod 0777, $apache->docroot . '/mark';
my $mark = $apache->docroot . '/mark/ran';

spew("$dir/conf/own.html", "<p>\@RETRY_AFTER\@ s, again \@RETRY_AFTER\@ s");
spew("$dir/conf/own.json", '{"wait":@RETRY_AFTER@,"at":"@RETRY_AFTER"}');
spew("$dir/conf/plain.html", 'no seconds');

my $port = $apache->port;
$apache->set(
    php_ini => { auto_prepend_file => "$dir/php/mark.php" },
    docroot_config => "DBGuard On\nOptions +Includes\n", config => <<"END");
DBGuardEngine On
DBGuardBudget 1
DBGuardQueue length=0
DBGuardRetryAfter min=3s max=8s
ErrorDocument 503 /x.php
ErrorDocument 429 /x.php
KeepAliveTimeout 20
AddType text/html .shtml
AddOutputFilter INCLUDES .shtml
AddOutputFilterByType DEFLATE text/html application/json
Header always set X-Always yes
Header set X-Ok yes
RewriteEngine On
<Directory \${DOCROOT}/app>
RewriteEngine On
RewriteCond %{REQUEST_FILENAME} !-f
RewriteRule . index.php
</Directory>
<VirtualHost *:$port>
ServerName main
</VirtualHost>
<VirtualHost *:$port>
ServerName own
DBGuardRefusal html=conf/own.html json=$dir/conf/own.json
</VirtualHost>
<VirtualHost *:$port>
ServerName status
DBGuardRefusal status=429
</VirtualHost>
<VirtualHost *:$port>
ServerName plain
DBGuardRefusal html=conf/plain.html
Header always set Retry-After 77
</VirtualHost>
END
$apache->start;

# The one token is taken from here on.
my $gate = "$dir/run/gate";
my $holder = $apache->get_async("/hold.php?gate=$gate");
wait_until(sub { $apache->status_auto->{DBGuardHeld} == 1 }, 10, 'a holder');

# Sends bytes; returns all that comes until the server closes.
sub talk
{
    my ($bytes) = @_;
    local $SIG{PIPE} = 'IGNORE';
    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
        PeerPort => $apache->port) or die "connect: $!";
    my $answer = '';
    local $SIG{ALRM} = sub { die "no end after: $answer" };
    alarm 30;
    syswrite $socket, $bytes;
    1 while sysread $socket, $answer, 65536, length $answer;
    alarm 0;
    return $answer;
}

# Splits what came into answers by their lengths; what is left comes last.
sub answers
{
    my ($bytes) = @_;
    my @answers;
    while ($bytes =~ s/\A(HTTP\/1\.1 (\d+) .*?\r\n)\r\n//s) {
        my ($head, $status) = ($1, $2);
        my ($length) = $head =~ /^Content-Length: (\d+)\r$/mi;
        push @answers, [$status, substr $bytes, 0, $length // 0, ''];
    }
    return @answers, $bytes;
}

sub request_head
{
    my ($method, $path, %headers) = @_;
    $headers{Host} //= 'main';
    return join "\r\n", "$method $path HTTP/1.1",
        (map { "$_: $headers{$_}" } sort keys %headers), '', '';
}

# What every refusal has, whatever it looks like.
sub check_common
{
    my ($answer, $status, $what) = @_;
    my $headers = $answer->{headers};
    is($answer->{status}, $status, "$what: $status");
    like($headers->{'retry-after'}, qr/^[3-8]$/, '... Retry-After');
    like($headers->{'dbguard-retry-after'}, qr/^(?:[3-7]\d{3}|8000)$/,
        '... and exactly, in milliseconds');
    is($headers->{'cache-control'}, 'no-store', '... never cached');
    is($headers->{'x-always'}, 'yes', '... Header always');
    ok(!exists $headers->{'transfer-encoding'}, '... not chunked');
    ok(!exists $headers->{'last-modified'} && !exists $headers->{etag},
        '... no validators');
}

subtest 'a browser' => sub {
    my $get = $apache->get('/x.php', Accept => $firefox);
    check_common($get, 503, 'GET');
    is($get->{headers}{'content-type'}, 'text/html; charset=utf-8', 'HTML');
    is($get->{headers}{'content-length'}, length $get->{body}, 'exact length');
    is($get->{headers}{refresh}, $get->{headers}{'retry-after'},
        'Refresh as Retry-After');
    like($get->{body}, qr/\b$get->{headers}{'retry-after'} seconds/,
        'the same number in the text');
    unlike($get->{body}, qr/\@RETRY_AFTER\@/, 'no place left open');

    my $head = $apache->head('/x.php', Accept => $firefox);
    check_common($head, 503, 'HEAD');
    is($head->{headers}{'content-length'}, $get->{headers}{'content-length'},
        'the same length');
    my $raw = talk(request_head('HEAD', '/x.php', Connection => 'close'));
    like($raw, qr/\AHTTP[^\n]+ 503 .*\r\n\r\n\z/s, '... and no body');
};

subtest 'Retry-After goes on, within its limits' => sub {
    my (%seen, @exact);
    for (1 .. 60) {
        my $headers = $apache->get('/x.php')->{headers};
        $seen{ $headers->{'retry-after'} }++;
        push @exact, $headers->{'dbguard-retry-after'};
    }
    is_deeply([grep { !/^[3-8]$/ } keys %seen], [], 'an integer from 3 to 8');
    cmp_ok(scalar(uniq(@exact)), '>=', 3, 'not always the same');
};

subtest 'HTML or JSON' => sub {
    my %html = (
        Firefox => { Accept => $firefox }, Chrome => { Accept => $chrome },
        nothing => {}, anything => { Accept => '*/*' },
        'an image' => { Accept => 'image/avif,image/webp,*/*' },
        both => { Accept => 'text/html, application/json;q=0.9' },
        'another X-Requested-With' => { 'X-Requested-With' => 'com.app' },
    );
    my %json = (
        json => { Accept => 'application/json' },
        'json first' => { Accept => 'application/json, text/plain, */*' },
        'other case' => { Accept => 'Application/JSON' },
        'with parameters' => { Accept => 'application/json;charset=utf-8' },
        'problem+json' => { Accept => 'application/problem+json' },
        XHR => { 'X-Requested-With' => 'XMLHttpRequest', Accept => '*/*' },
        'XHR for HTML' => { 'X-Requested-With' => 'XMLHttpRequest',
            Accept => $firefox },
    );
    my $exact = sub { $_[0]{headers}{'dbguard-retry-after'} };
    for my $what (sort keys %html) {
        like($apache->get('/x.php', %{ $html{$what} })->{headers}
            {'content-type'}, qr{^text/html}, "$what: HTML");
    }
    for my $what (sort keys %json) {
        my $answer = $apache->get('/x.php', %{ $json{$what} });
        check_common($answer, 503, $what);
        like($answer->{headers}{'content-type'}, qr{^application/json}, 'JSON');
        is($answer->{headers}{'content-length'}, length $answer->{body},
            'exact length');
        my $data = eval { decode_json($answer->{body}) };
        is($data->{retry_after} * 1000, $exact->($answer),
            'valid, and retry_after is exact');
        like($answer->{body}, qr/"retry_after":\d+\.\d{3}\}/,
            '... a number with three decimals');
        ok(!exists $answer->{headers}{refresh}, 'no Refresh');
    }
};

subtest 'Refresh for what may be asked again' => sub {
    my %navigation = ('Sec-Fetch-Mode' => 'navigate', Accept => $firefox);
    ok(exists $apache->get('/x.php', %navigation)->{headers}{refresh},
        'a navigation');
    for my $mode (qw(cors no-cors same-origin websocket)) {
        ok(!exists $apache->get('/x.php', 'Sec-Fetch-Mode' => $mode)
            ->{headers}{refresh}, "not for Sec-Fetch-Mode $mode");
    }
    ok(!exists $apache->post('/x.php', 'a=b', %navigation)->{headers}{refresh},
        'not for POST');
    ok(!exists $apache->request($_, '/x.php')->{headers}{refresh},
        "not for $_") for qw(PUT DELETE OPTIONS);
};

subtest 'the built-in page' => sub {
    my $body = $apache->get('/x.php', Accept => $firefox)->{body};
    cmp_ok(length $body, '<', 4096, 'under 4 KB');
    like($body, qr/<meta name="viewport"/, 'fits a phone');
    like($body, qr/prefers-color-scheme/, 'dark and light');
    like($body, qr/<html lang="\w+">/, 'says its language');
    like($body, qr/<title>[^<]+<\/title>/, 'has a title');
    unlike($body, qr/https?:/, 'nothing from elsewhere');
    unlike($body, qr/\bsrc=|\bhref=|url\(|\@import/, '... by no other way');
    unlike($body, qr/<script|\son\w+=/i, 'no script');
};

subtest 'own pages, per virtual host' => sub {
    my $html = $apache->get('/x.php', Host => 'own');
    my $seconds = $html->{headers}{'retry-after'};
    check_common($html, 503, 'own HTML');
    is($html->{body}, "<p>$seconds s, again $seconds s", 'its text');
    is($html->{headers}{'content-length'}, length $html->{body}, 'its length');
    my $json = $apache->get('/x.php', Host => 'own',
        Accept => 'application/json');
    $seconds = sprintf '%.3f', $json->{headers}{'dbguard-retry-after'} / 1000;
    is($json->{body}, qq({"wait":$seconds,"at":"\@RETRY_AFTER"}), 'own JSON');
    is($apache->get('/x.php', Host => 'plain')->{body}, 'no seconds',
        'a page without seconds');
    unlike($apache->get('/x.php', Host => 'main')->{body}, qr/s, again/,
        'the other host has the built-in page');
    my $status = $apache->get('/x.php', Host => 'status');
    check_common($status, 429, 'own status');
    is($status->{reason}, 'Too Many Requests', '... with its words');
    my $data = decode_json($apache->get('/x.php', Host => 'status',
        Accept => 'application/json')->{body});
    ok(!exists $data->{status} || $data->{status} == 429,
        'JSON does not say another');
};

subtest 'other modules' => sub {
    my $answer = $apache->get('/x.php', 'Accept-Encoding' => 'gzip, br');
    ok(!exists $answer->{headers}{'content-encoding'}, 'not compressed');
    is($answer->{headers}{'content-length'}, length $answer->{body},
        '... its length is exact');
    ok(!exists $answer->{headers}{'x-ok'}, 'Header without always');
    is($apache->get('/x.php', Host => 'plain')->{headers}{'retry-after'}, 77,
        'Header always has the last word');
    check_common($apache->get('/app/some/page'), 503, 'a front controller');
    check_common($apache->get('/x.php', 'If-Modified-Since' =>
        'Fri, 01 Jan 2038 00:00:00 GMT', 'If-None-Match' => '*'), 503,
        'a conditional request');
    my $range = $apache->get('/x.php', Range => 'bytes=0-9');
    check_common($range, 503, 'a range');
    is($range->{headers}{'content-length'}, length $range->{body}, 'whole');
    my $page = $apache->get('/page.shtml');
    is($page->{status}, 200, 'a static page that includes a guarded one');
    like($page->{body}, qr/\Atop, .*, bottom\z/s, '... is whole but for it');
    unlike($page->{body}, qr/ran|<html/, '... which is not there');
};

subtest 'POST' => sub {
    for my $size (0, 10, 64 * 1024, 1024 * 1024) {
        my $answer = $apache->post('/x.php', 'x' x $size);
        check_common($answer, 503, "$size bytes");
        is($answer->{headers}{'content-length'}, length $answer->{body},
            '... exact length');
    }
    my $raw = talk(request_head('POST', '/x.php',
        'Transfer-Encoding' => 'chunked')
        . join('', map { "400\r\n" . 'x' x 1024 . "\r\n" } 1 .. 100)
        . "0\r\n\r\n");
    like($raw, qr/\AHTTP\/1\.1 503 /, 'chunked');
    is(scalar(() = $raw =~ /HTTP\/1\.1/g), 1, '... one answer');
    $raw = talk(request_head('POST', '/x.php', 'Content-Length' => 1 << 20,
        'Expect' => '100-continue'));
    like($raw, qr/\AHTTP\/1\.1 503 /, 'Expect: at once, and no 100');
    $raw = talk(request_head('POST', '/x.php', Host => 'status',
        'Content-Length' => 10, 'Expect' => '100-continue'));
    like($raw, qr/\AHTTP\/1\.1 429 .*Connection: close/s,
        '... and the connection ends there');
};

# Whoever sends a body slowly, or not at all, keeps no worker by it.
subtest 'a slow POST' => sub {
    for my $host (qw(main status)) {
        for my $length (100, 1 << 20) {
            my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
                PeerPort => $apache->port) or die "connect: $!";
            my $begun = time;
            local $SIG{PIPE} = 'IGNORE';
            syswrite $socket, request_head('POST', '/x.php', Host => $host,
                'Content-Length' => $length) . 'some';
            my $answer = '';
            wait_until(sub {
                my $readable = '';
                vec($readable, fileno $socket, 1) = 1;
                return 0 if !select $readable, undef, undef, 0.1;
                # Never silent: a byte now and then.
                syswrite $socket, 'x';
                return !sysread $socket, $answer, 65536, length $answer;
            }, 30, 'the end of the answer');
            my $what = "$host, $length bytes";
            like($answer, qr{\AHTTP/1\.1 (?:503|429) .*Connection: close}s,
                "$what: refused, and closed");
            cmp_ok(time - $begun, '<', 2, '... at once');
            # The server half-closed; it listens for a moment more.
            wait_until(sub {
                select undef, undef, undef, 0.2;
                syswrite $socket, 'x';
                $apache->status_auto->{BusyWorkers} <= 2;
            }, 8, 'the worker to be free');
            cmp_ok(time - $begun, '<', 8, '... and its worker is free');
        }
    }
    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
        PeerPort => $apache->port) or die "connect: $!";
    syswrite $socket, request_head('POST', '/x.php', Host => 'status',
        'Content-Length' => 3);
    select undef, undef, undef, 0.02;
    syswrite $socket, 'a=b' . request_head('GET', '/s.txt',
        Connection => 'close');
    my $answer = '';
    1 while sysread $socket, $answer, 65536, length $answer;
    like($answer, qr/ 429 .* 200 .*static\z/s,
        'a body that follows in a packet of its own keeps the connection');
};

# A 503 closes the connection: that is httpd's rule. A 429 does not.
subtest 'what follows on the connection' => sub {
    my $static = request_head('GET', '/s.txt', Connection => 'close');
    my @got = answers(talk(request_head('GET', '/x.php') . $static));
    is(scalar(@got), 2, '503: one answer and the end');
    is($got[1], '', '... and nothing after it');

    my %host = (Host => 'status');
    my $hello = request_head('POST', '/x.php', %host, 'Content-Length' => 5)
        . 'hello';
    my $large = request_head('POST', '/x.php', %host,
        'Content-Length' => 1 << 20) . 'x' x (1 << 20);
    my $chunked = request_head('POST', '/x.php', %host,
        'Transfer-Encoding' => 'chunked') . "5\r\nhello\r\n0\r\n\r\n";
    my $get = request_head('GET', '/x.php', %host);
    my $head = request_head('HEAD', '/x.php', %host);
    for (['GET' => $get], ['POST' => $hello], ['three GETs' => $get x 3],
        ['POST and GET' => "$hello$get"]) {
        my ($what, $bytes) = @$_;
        my @got = answers(talk($bytes . $static));
        is(pop @got, '', "429, $what: nothing but answers");
        my $last = pop @got;
        is_deeply($last, [200, 'static'], '... the next request is served');
        is_deeply([grep { $_->[0] != 429 } @got], [], '... all before refused');
        is(scalar(@got), scalar(() = $bytes =~ /HTTP\/1\.1/g), '... each once');
    }
    like(talk($head . $static),
        qr/\AHTTP\/1\.1 429 .*?\r\n\r\nHTTP\/1\.1 200 .*?\r\n\r\nstatic\z/s,
        'HEAD, then the next');
    # A body that is not read is never taken for a request.
    for (['large' => $large], ['chunked' => $chunked]) {
        my ($what, $bytes) = @$_;
        my @got = answers(talk($bytes . $static));
        is($got[0][0], 429, "429, $what body");
        is_deeply([grep { $_->[0] !~ /^(?:429|200)$/ } grep { ref } @got], [],
            '... and no nonsense after it');
    }
    # In two pieces, as a person's browser would.
    my $one = $apache->open_request('POST', '/x.php', headers => \%host,
        body => 'a=b', keepalive => 1);
    is($one->response->{status}, 429, 'keep-alive: refused');
    my $two = $apache->open_request('GET', '/s.txt', headers => \%host,
        socket => $one->socket);
    is($two->response->{status}, 200, '... and the connection goes on');
};

subtest 'HTTP/1.0 and less' => sub {
    my $raw = talk("GET /x.php HTTP/1.0\r\n\r\n");
    my ($head, $body) = split /\r\n\r\n/, $raw, 2;
    like($head, qr/\AHTTP\/1\.\d 503 /, 'HTTP/1.0');
    like($head, qr/^Content-Length: @{[length $body]}\r$/m, '... length');
    unlike($head, qr/Transfer-Encoding/, '... not chunked');
    like(talk("GET /x.php HTTP/1.0\r\nHost: status\r\n"
        . "Connection: keep-alive\r\n\r\nGET /s.txt HTTP/1.0\r\n\r\n"),
        qr/\AHTTP\/1\.1 429 .*static\z/s, 'HTTP/1.0 with keep-alive');
};

ok(!-e $mark, 'PHP has not run for any of these, ErrorDocument included');
my %codes;
$codes{ $_->{verdict} }++ for $apache->access_entries;
is_deeply([grep { !/^(?:-|refused\(budget\))$/ } keys %codes], [],
    'all are in the log as refused');
spew($gate, '');
is($holder->response->{status}, 200, 'the holder ends');
is($apache->get('/x.php')->{body}, 'ran', 'and the next one is served');
ok(-e $mark, '... by PHP, which leaves a mark');
$stack->stop;

subtest 'HTTP/2' => sub {
    my $curl = (grep { -x "$_/curl" } split /:/, $ENV{PATH})[0]
        or plan skip_all => 'no curl';
    plan skip_all => 'curl without HTTP/2' if `curl -V` !~ /\bHTTP2\b/;
    my $two = DBGuard::Stack->start(apache => {
        mpm => 'event', workers => 8, cgi => 1, http2 => 1,
        modules => ['headers'],
        docroot_config => 'DBGuard On', config => <<'END',
DBGuardEngine On
DBGuardBudget 1
DBGuardQueue length=0
Header always set X-Always yes
END
        files => {
            'x.cgi' => "#!/bin/sh\ncat >/dev/null\necho; echo ran\n",
            'hold.cgi' => "#!/bin/sh\necho; "
                . "while [ ! -e \$QUERY_STRING ]; do sleep 0.02; done\n",
            's.txt' => 'static',
        },
    });
    my $server = $two->apache;
    my $curl_all = sub {
        my (@arg) = @_;
        return DBGuard::Process::run('curl', '-s', '-i', '-m', 30,
            '--http2-prior-knowledge', @arg);
    };
    my $url = $server->url('/x.cgi');
    is(($curl_all->($url))[1] =~ /ran/, 1, 'served when there is a token');
    my $gate = $server->dir . '/run/gate';
    # The token comes back after the answer.
    wait_until(sub { $server->status_auto->{DBGuardHeld} == 0 }, 10,
        'the token to be back');
    my $holder = $server->get_async("/hold.cgi?$gate");
    wait_until(sub { $server->status_auto->{DBGuardHeld} == 1 }, 10,
        'a holder');

    my ($code, $text) = $curl_all->($url);
    my ($head, $body) = split /\r\n\r\n/, $text, 2;
    is($code, 0, 'GET');
    like($head, qr/\AHTTP\/2 503/, '... 503');
    like($head, qr/^content-length: @{[length $body]}\r$/m, '... length');
    like($head, qr/^retry-after: \d+\r$/m, '... Retry-After');
    like($head, qr/^x-always: yes\r$/m, '... Header always');
    ($code, my $only) = $curl_all->('-I', $url);
    is($code, 0, 'HEAD');
    like($only, qr/\AHTTP\/2 503.*^content-length: \d+\r$/ms, '... length');
    like($only, qr/\r\n\r\n\z/, '... no body');

    # curl 7.88 may lose an answer that comes before it has sent its body.
    my $nghttp = (grep { -x "$_/nghttp" } split /:/, $ENV{PATH})[0];
    SKIP: {
        skip 'no nghttp', 6 if !$nghttp;
        for my $size (3, 1 << 20) {
            spew($server->dir . '/body', 'x' x $size);
            ($code, $text) = DBGuard::Process::run('nghttp', '-v', '-t', 30,
                '-d', $server->dir . '/body', $url);
            like($text, qr/:status: 503.*<\/html>/s, "POST, $size bytes");
            unlike($text, qr/error_code=(?!NO_ERROR)/, '... without an error');
        }
        ($code, $text) = DBGuard::Process::run('nghttp', '-v', '-t', 30, $url,
            $server->url('/s.txt'), "$url?again");
        is_deeply([sort $text =~ /:status: (\d+)/g], [200, 503, 503],
            'one connection, three requests');
        unlike($text, qr/error_code=(?!NO_ERROR)/, '... without an error');
    }
    spew($gate, '');
    $holder->response;
    wait_until(sub { $server->status_auto->{DBGuardHeld} == 0 }, 10,
        'no holder');
    is(($curl_all->($url))[1] =~ /ran/, 1, 'served again');
    $two->stop;
};

done_testing;
