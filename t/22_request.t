# The path of a request: one token for all that belongs to one request,
# whichever way httpd takes it; what is guarded and what never is; and when
# exactly the token comes back.
#
# The budget is 1 and nobody may wait, so whoever asks twice refuses itself.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use DBGuard::Stack qw(spew slurp wait_until);

# Every page that waits does so until the file ?gate= is there.
my %files = (
    'hold.php' => <<'END',
<?php
echo 'begun ';
flush();
while (!file_exists($_GET['gate'])) usleep(5000);
echo 'ended';
END
    'shutdown.php' => <<'END',
<?php
register_shutdown_function(function () {
    while (!file_exists($_GET['gate'])) usleep(5000);
});
echo 'done';
flush();
END
    'destructor.php' => <<'END',
<?php
class Late {
    function __destruct() {
        while (!file_exists($_GET['gate'])) usleep(5000);
    }
}
$late = new Late;
echo 'done';
flush();
END
    'slow-shutdown.php' =>
        '<?php register_shutdown_function("usleep", 300000); echo "done";',
    'output.php' => <<'END',
<?php
header('Content-Length: ' . $_GET['bytes']);
for ($i = 0; $i < $_GET['bytes']; $i += 8192) echo str_repeat('x', 8192);
END
    'endless.php' => '<?php while (1) { echo str_repeat("x", 1024); flush(); }',
    'x.php' => '<?php echo "x", $_SERVER["DBGUARD_VERDICT"] ?? "-";',
    'post.php' => '<?php echo strlen(file_get_contents("php://input"));',
    'exit.php' => '<?php echo "before"; exit(3); echo "after";',
    'fatal.php' => '<?php no_such_function();',
    'throw.php' => '<?php throw new Exception("x");',
    'memory.php' => '<?php ini_set("memory_limit", "4M"); '
        . 'str_repeat("x", 99999999);',
    'virtual.php' => '<?php echo "["; virtual("/x.php"); virtual("/s.txt"); '
        . 'virtual("/x.cgi"); echo "]";',
    'index/index.php' => '<?php echo "index";',
    'front/index.php' => '<?php echo "front ", '
        . 'strtok($_SERVER["REQUEST_URI"], "?");',
    'server/index.php' => '<?php echo "server ", '
        . 'strtok($_SERVER["REQUEST_URI"], "?");',
    'fallback/index.php' => '<?php echo "fallback";',
    'two.shtml' => '(<!--#include virtual="x.php"-->, '
        . '<!--#include virtual="x.php?2"-->)',
    'handler/two.shtml' => '(<!--#include virtual="/x.php"-->, '
        . '<!--#include virtual="/x.php?2"-->)',
    'x.cgi' => "#!/bin/sh\necho Content-Type: text/plain; echo; echo cgi\n",
    'redirect.cgi' => "#!/bin/sh\necho Location: /x.php; echo\n",
    'error/x.txt' => '',
    'error/php.php' => '<?php echo "error page";',
    'x.asis' => "Content-Type: text/plain\n\nas it is",
    'x.map' => "default nocontent\n", 'x.imap' => "default nocontent\n",
    'text.var' => "URI: s.txt\nContent-Type: text/plain\n",
    'php.var' => "URI: x.php\nContent-Type: text/html\n",
    's.txt' => 'static', 'LICENSE' => 'no type', 'x.unknown' => 'no type',
    'listing/a.txt' => '', 'listing/b.txt' => '',
    'type.phpt' => '<?php echo "type";',
    'handler.phph' => '<?php echo "handler";',
    'forced' => '<?php echo "forced";',
    'off/x.php' => '<?php echo 1;', 'off/on/x.php' => '<?php echo 1;',
);

my $stack = DBGuard::Stack->new(apache => {
    workers => 6, php => 1, cgi => 1, files => \%files,
    php_ini => { output_buffering => 0 },
    modules => [qw(include rewrite autoindex info asis imagemap negotiation)],
    docroot_config => "DBGuard On\nOptions +Includes +Indexes\n",
    config => <<'END',
DBGuardEngine On
DBGuardBudget 1
DBGuardQueue length=0
AddType text/html .shtml
AddOutputFilter INCLUDES .shtml
<Location /handler>
RemoveOutputFilter .shtml
AddHandler server-parsed .shtml
</Location>
AddHandler send-as-is .asis
AddHandler imap-file .map
AddType application/x-httpd-imap .imap
AddHandler type-map .var
AddType application/x-httpd-php .phpt
AddHandler application/x-httpd-php .phph
<Files forced>
SetHandler application/x-httpd-php
</Files>
<Location /server-info>
SetHandler server-info
</Location>
RewriteEngine On
RewriteCond %{REQUEST_URI} !index\.php
RewriteRule ^/server/ /server/index.php [PT]
<Directory ${DOCROOT}/front>
RewriteEngine On
RewriteCond %{REQUEST_FILENAME} !-f
RewriteRule . index.php
</Directory>
<Directory ${DOCROOT}/fallback>
FallbackResource /fallback/index.php
</Directory>
<Directory ${DOCROOT}/error>
ErrorDocument 404 /error/php.php
</Directory>
# A place that nobody has told to guard.
Alias /health ${DOCROOT}/../health
<Directory ${DOCROOT}/../health>
Require all granted
</Directory>
<Directory ${DOCROOT}/off>
DBGuard Off
</Directory>
<Directory ${DOCROOT}/off/on>
DBGuard On
</Directory>
<LocationMatch ^/off/on/loc>
DBGuard Off
</LocationMatch>
END
});
my $apache = $stack->apache;
mkdir $apache->dir . '/health';
spew($apache->dir . '/health/check.php', '<?php echo "healthy";');
$stack->start;
my $gates = 0;

sub gate { $apache->dir . '/run/gate.' . $gates++ }
sub held { $apache->status_auto->{DBGuardHeld} }
sub wait_held
{
    my ($n) = @_;
    wait_until(sub { held() == $n }, 10, "$n to hold");
}

my $mark = 0;

# Asks for a path; returns the answer and its entry of the access log. Each
# request has a mark of its own: log lines may come after later answers.
sub ask
{
    my ($path, $method, %arg) = @_;
    my $query = '?mark=' . ++$mark;
    my $answer = $apache->request($method // 'GET', "$path$query", %arg);
    return ($answer, entry("\Q$path$query\E"));
}

# The entry of the access log for the request that matches.
sub entry
{
    my ($regex) = @_;
    return wait_until(sub {
        (grep { $_->{request} =~ /^\w+ $regex / } $apache->access_entries)[0];
    }, 10, "a log line for $regex");
}

# Runs the code and says how much each of these totals has grown.
sub grown
{
    my ($code) = @_;
    my @names = map { "DBGuard${_}Total" } qw(Admitted Released Refused);
    my $before = $apache->status_auto;
    $code->();
    wait_held(0);
    my $after = $apache->status_auto;
    return [map { $after->{$_} - $before->{$_} } @names];
}

# Path, tokens, status, body.
my @paths = (
    ['/x.php', 1, 200, 'xadmitted'],
    ['/two.shtml', 2, 200, '(xadmitted, xadmitted)'],
    ['/handler/two.shtml', 2, 200, '(xadmitted, xadmitted)'],
    ['/virtual.php', 1, 200, "[xadmittedstaticcgi\n]"],
    ['/front/some/page', 1, 200, 'front /front/some/page'],
    ['/server/some/page', 1, 200, 'server /server/some/page'],
    ['/fallback/page', 1, 200, 'fallback'],
    ['/index/', 1, 200, 'index'],
    ['/x.cgi', 1, 200, "cgi\n"],
    ['/redirect.cgi', 1, 200, 'xadmitted'],
    ['/error/nothing', 1, 404, 'error page'],
    ['/error/nothing.php', 1, 404, 'error page'],
    ['/nothing.php', 0, 404, undef],
    ['/type.phpt', 1, 200, 'type'],
    ['/handler.phph', 1, 200, 'handler'],
    ['/forced', 1, 200, 'forced'],
    ['/exit.php', 1, 200, 'before'],
    ['/fatal.php', 1, 500, ''],
    ['/throw.php', 1, 500, ''],
    ['/memory.php', 1, 500, ''],
    ['/s.txt', 0, 200, 'static'],
    ['/LICENSE', 0, 200, 'no type'],
    ['/x.unknown', 0, 200, 'no type'],
    ['/x.asis', 0, 200, 'as it is'],
    ['/x.map', 0, 200, undef],
    ['/x.imap', 0, 200, undef],
    ['/text.var', 0, 200, 'static'],
    ['/php.var', 1, 200, 'xadmitted'],
    ['/nothing', 0, 404, undef],
    ['/listing/', 0, 200, undef],
    ['/server-status', 0, 200, undef],
    ['/server-info', 0, 200, undef],
    ['/off/x.php', 0, 200, '1'],
    ['/health/check.php', 0, 200, 'healthy'],
    ['/off/on/x.php', 1, 200, '1'],
    ['/off/on/loc/../x.php', 1, 200, '1'],
);

for my $case (@paths) {
    my ($path, $tokens, $status, $body) = @$case;
    my ($answer, $entry);
    my $grown = grown(sub { ($answer, $entry) = ask($path) });
    is($answer->{status}, $status, "$path: $status");
    is($answer->{body}, $body, '... its body') if defined $body;
    is_deeply($grown, [$tokens, $tokens, 0], "... $tokens admitted and back");
    is($entry->{verdict}, $tokens ? 'admitted' : '-', '... in the log');
    like($entry->{hold}, $tokens ? qr/^\d+$/ : qr/^-$/, '... with its hold');
}
is($apache->status_auto->{DBGuardHeldPeak}, 1, 'never more than one at a time');

subtest 'methods' => sub {
    my ($head, $entry) = ask('/x.php', 'HEAD');
    is($head->{status}, 200, 'HEAD');
    is($entry->{verdict}, 'admitted', '... admitted');
    is($entry->{endpoint}, 'HEAD /x.php', '... its endpoint');
    (my $post, $entry) = ask('/post.php', 'POST', body => 'x' x 100000);
    is($post->{body}, 100000, 'POST');
    is($entry->{endpoint}, 'POST /post.php', '... its endpoint');
    is($apache->request('PUT', '/post.php', body => 'abc')->{body}, 3, 'PUT');
    is($apache->request('OPTIONS', '/x.php')->{status}, 200, 'OPTIONS');
    wait_held(0);
};

subtest 'keep-alive' => sub {
    my $one = $apache->open_request('GET', '/x.php', keepalive => 1);
    is($one->response->{body}, 'xadmitted', 'the first');
    wait_held(0);
    pass('its token is back while the connection stays');
    my $two = $apache->open_request('GET', '/x.php', socket => $one->socket);
    is($two->response->{body}, 'xadmitted', 'the second');
};

subtest 'with the token taken' => sub {
    my $gate = gate();
    my $holder = $apache->get_async("/hold.php?gate=$gate");
    wait_held(1);
    for my $path ('/s.txt', '/LICENSE', '/x.unknown', '/listing/', '/x.asis',
        '/server-status', '/server-info', '/off/x.php', '/health/check.php') {
        my ($answer, $entry) = ask($path);
        is($answer->{status}, 200, "$path is served");
        is($entry->{verdict}, '-', '... and is not guarded');
    }
    is($apache->get($_)->{status}, 404, "$_ is not there")
        for '/nothing', '/nothing.php';
    is($apache->get($_)->{status}, 503, "$_, whose ErrorDocument is a script")
        for '/error/nothing', '/error/nothing.php';
    my $refused = grown(sub {
        for (grep { $_->[1] && $_->[0] !~ /shtml/ } @paths) {
            my ($answer, $entry) = ask($_->[0]);
            is($answer->{status}, 503, "$_->[0] is refused");
            is($entry->{verdict}, 'refused(budget)', '... in the log');
        }
        spew($gate, '');
    });
    is($holder->response->{body}, 'begun ended', 'the holder');
    is($refused->[0], 0, 'nothing was admitted');
};

# Waits until what has come so far matches.
sub read_until
{
    my ($request, $regex) = @_;
    wait_until(sub { $request->fill(0.1); $request->{buffer} =~ $regex }, 10,
        "$regex in the answer");
}

# Reads up to so many bytes, head and all, for answers that are not to be read
# to their end; returns how many came.
sub read_bytes
{
    my ($request, $wanted) = @_;
    my $got = 0;
    while ($got < $wanted) {
        my $n = sysread $request->socket, my $buffer, 1 << 20 or last;
        $got += $n;
    }
    return $got;
}

subtest 'work after the output counts' => sub {
    for my $page (qw(hold shutdown destructor)) {
        my $gate = gate();
        my $request = $apache->get_async("/$page.php?gate=$gate");
        read_until($request, qr/begun|done/);
        is(held(), 1, "$page.php: output has come, the token has not");
        is($apache->get('/x.php')->{status}, 503, '... nobody else has it');
        spew($gate, '');
        is($request->response->{status}, 200, '... it ends');
        wait_held(0);
    }
    my ($answer, $entry) = ask('/slow-shutdown.php');
    cmp_ok($entry->{hold}, '>=', 300_000, '300 ms of it');
};

subtest 'clients that hang up' => sub {
    my $request = $apache->get_async('/endless.php');
    read_bytes($request, 10_000);
    is(held(), 1, 'in the middle of the output');
    $request->close;
    wait_held(0);
    is(entry('/endless\.php')->{verdict}, 'admitted', '... is logged');
    like(entry('/endless\.php')->{hold}, qr/^\d+$/, '... with its hold');

    my $gate = gate();
    $request = $apache->get_async("/hold.php?gate=$gate");
    read_until($request, qr/begun/);
    $request->close;
    is(held(), 1, 'PHP does not notice before it writes: the token stays out');
    spew($gate, '');
    wait_held(0);
};

# PHP hands its output to httpd, which hands it to the kernel. What fits there
# does not keep PHP, and so not the token; with more, PHP itself waits for the
# client, with whatever connection it has open, and that is a hold.
subtest 'clients that read slowly' => sub {
    my $small = $apache->get_async('/output.php?bytes=131072');
    like(entry('/output\.php\S+')->{hold}, qr/^\d+$/, '128 KB: it has ended');
    is(held(), 0, '... the token is back though nothing was read');
    is(length $small->response->{body}, 131072, '... and all of it comes');

    my $size = 1 << 25;
    my $large = $apache->get_async("/output.php?bytes=$size");
    read_bytes($large, 10_000);
    is(held(), 1, '32 MB: PHP waits for the client, and holds its token');
    cmp_ok(read_bytes($large, $size), '>', $size - 3_000_000, 'it is read');
    wait_held(0);
};

subtest 'server, virtual host, directory and location' => sub {
    $apache->stop;
    my $port = $apache->port;
    # Each step down may change what the one above said.
    $apache->set(docroot_config => 'Require all granted', config => <<"END");
DBGuardEngine On
DBGuard On
<Directory \${DOCROOT}/off>
DBGuard Off
</Directory>
<Location /off/on>
DBGuard On
</Location>
<VirtualHost *:$port>
ServerName main
</VirtualHost>
<VirtualHost *:$port>
ServerName off
DBGuard Off
<Directory \${DOCROOT}/index>
DBGuard On
</Directory>
</VirtualHost>
<VirtualHost *:$port>
ServerName on
DBGuard On
<Location />
DBGuard Off
</Location>
<Location /index>
DBGuard On
</Location>
<If "%{QUERY_STRING} == 'if'">
DBGuard On
</If>
</VirtualHost>
END
    $apache->start;
    my @expected = (
        [main => '/x.php', 1], [main => '/off/x.php', 0],
        [main => '/off/on/x.php', 1], [off => '/x.php', 0],
        [off => '/index/index.php', 1], [off => '/off/on/x.php', 1],
        [on => '/x.php', 0], [on => '/index/index.php', 1],
        [on => '/x.php?if', 1], [on => '/off/on/x.php', 0],
    );
    for (@expected) {
        my ($host, $path, $guarded) = @$_;
        my $before = $apache->status_auto->{DBGuardAdmittedTotal};
        is($apache->get($path, Host => $host)->{status}, 200, "$host $path");
        is($apache->status_auto->{DBGuardAdmittedTotal} - $before, $guarded,
            $guarded ? '... guarded' : '... not guarded');
    }
};

$stack->stop;
done_testing;
