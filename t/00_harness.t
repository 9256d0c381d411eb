# Tests of the tests: what DBGuard::Stack starts works, is separate from any
# other stack, and is gone afterwards, also when its owner is killed.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use DBGuard::Stack qw(wait_until);

sub members { DBGuard::Process::members($_[0]) }

my %arg = (db => {}, apache => { guard => 0, php => 1 });
my $one = DBGuard::Stack->start(%arg);
my $two = DBGuard::Stack->start(%arg);

for my $stack ($one, $two) {
    my $answer = $stack->apache->get('/p.php');
    is($answer->{status}, 200, 'a PHP page that asks the database');
    is($answer->{body}, "ok\n", '... its body');
}
is($one->db->variable('max_connections'), 24, 'max_connections');
is($one->apache->get('/static.txt')->{body}, "a static file\n", 'static file');
is(scalar($one->apache->workers), 16, 'all workers are there');
is($one->apache->status_auto->{ServerMPM}, 'prefork', '?auto');
isnt($one->apache->port, $two->apache->port, 'two stacks, two ports');

subtest 'answers are read when asked for' => sub {
    my @slow = map { $one->apache->get_async('/p.php?s=0.5') } 1 .. 4;
    ok(!$slow[0]->ready, 'not yet');
    is($one->apache->get('/p.php')->{status}, 200, 'another one meanwhile');
    is($_->response->{status}, 200, 'then') for @slow;
    my $gone = $one->apache->get_async('/p.php?s=0.2');
    $gone->close;
    wait_until(sub {
        grep { $_->{request} =~ /s=0\.2/ } $one->apache->access_entries;
    }, 5, 'the log line of a client that hung up');
};

subtest 'methods and connections' => sub {
    my $head = $one->apache->head('/static.txt');
    is($head->{headers}{'content-length'}, 14, 'HEAD has a length');
    is($head->{body}, '', '... and no body');
    is($one->apache->post('/p.php', 'a=b')->{status}, 200, 'POST');
    my $first = $one->apache->open_request('GET', '/p.php', keepalive => 1);
    is($first->response->{status}, 200, 'keep-alive, first');
    my $next = $one->apache->open_request('GET', '/static.txt',
        socket => $first->socket);
    is($next->response->{status}, 200, '... and second');
};

subtest 'restart and configtest' => sub {
    my $apache = $two->apache;
    my @before = $apache->workers;
    $apache->set(docroot_config => 'SetEnv X y');
    $apache->restart('graceful');
    is($apache->get('/p.php')->{status}, 200, 'after a graceful restart');
    wait_until(sub { !grep { kill 0 => $_ } @before }, 10, 'old workers to go');
    $apache->set(config => 'NoSuchDirective');
    my ($code, $output) = $apache->configtest;
    is($code, 1, 'a bad configuration');
    like($output, qr/NoSuchDirective/, '... and why');
    is(($one->apache->configtest)[0], 0, 'a good configuration');
    my $third = DBGuard::Stack->new(
        apache => { guard => 0, config => 'NoSuchDirective' });
    like($third->apache->try_start, qr/NoSuchDirective/, 'a failed start');
};

subtest 'the database stops, hangs and is killed' => sub {
    my $db = $two->db;
    $db->pause;
    my $request = $two->apache->get_async('/p.php');
    select undef, undef, undef, 0.1;
    ok(!$request->ready, 'hangs');
    $db->resume;
    is($request->response->{status}, 200, 'goes on');
    $db->kill;
    is($two->apache->get('/p.php')->{status}, 500, 'killed');
    $db->start;
    is($two->apache->get('/p.php')->{status}, 200, 'back on the same socket');
    $db->pause;
};

for my $mpm (qw(worker event)) {
    my $stack = DBGuard::Stack->start(apache => {
        guard => 0, mpm => $mpm, workers => 16, cgi => 1, http2 => 1,
        files => { 'x.cgi' => "#!/bin/sh\necho; echo hello\n" },
    });
    is($stack->apache->get('/x.cgi')->{body}, "hello\n", "$mpm, a CGI");
    is(scalar($stack->apache->workers), 2, '... two processes');
    $stack->stop;
}

my @leaders = map { ($_->apache->parent, $_->db->pid) } $one, $two;
$_->stop for $one, $two;
is_deeply([map { members($_) } @leaders], [], 'no process is left');

subtest 'nothing outlives an owner' => sub {
    for my $signal (qw(TERM KILL)) {
        my $child = open(my $out, '-|') // die;
        if (!$child) {
            exec $^X, "-I$FindBin::Bin/lib", '-MDBGuard::Stack', '-e', <<'END';
$| = 1;
my $stack = DBGuard::Stack->start(db => {}, apache => { guard => 0 });
print join(' ', $stack->dir, $stack->apache->parent, $stack->db->pid), "\n";
sleep 60;
END
        }
        my ($dir, @pids) = split ' ', <$out>;
        ok(-d $dir && members($pids[0]) && members($pids[1]), 'it runs');
        kill $signal => $child;
        close $out;
        wait_until(sub { !-d $dir && !map { members($_) } @pids }, 5,
            'the rest to go');
        pass("gone after SIG$signal");
    }
};

subtest 'a report of a sanitizer fails its test' => sub {
    my ($code, $output) = DBGuard::Process::run($^X, "-I$FindBin::Bin/lib",
        '-MDBGuard::Stack', '-e', <<'END');
my $apache = DBGuard::Stack->start(apache => { guard => 0 })->apache;
open my $log, '>>', $apache->dir . '/log/error.log';
print $log "==1==ERROR: AddressSanitizer: heap-use-after-free\n";
END
    is($code, 1, 'the exit code');
    like($output, qr/heap-use-after-free/, 'the report is shown');
};

done_testing;
