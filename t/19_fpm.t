# PHP outside of httpd: event with mod_proxy_fcgi in front of php-fpm. One token
# for each request that goes there, never more than the budget, a refusal that
# PHP never hears of; and the token comes back when the answer has ended,
# whatever becomes of the client, of php-fpm or of httpd's child.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Test::More;
use DBGuard::Stack qw(spew slurp wait_until);

my ($fpm) = reverse sort grep { -x } glob '/usr/sbin/php-fpm*';
plan skip_all => 'php-fpm is not installed' if !$fpm;

# Each notes that it began, and holds until the file ?gate= is there.
my $begin = <<'END';
<?php
$dir = dirname(__DIR__) . '/sessions';
file_put_contents("$dir/began", "x", FILE_APPEND);
function gate() {
    while (!file_exists($_GET['gate'])) { usleep(5000); clearstatcache(); }
}
END
my $stack = DBGuard::Stack->new(apache => {
    mpm => 'event', workers => 16, threads => 8,
    modules => [qw(proxy proxy_fcgi)],
    files => {
        'hold.php' => $begin . 'gate(); echo "done";',
        'shutdown.php' => $begin
            . 'register_shutdown_function("gate"); echo "done"; flush();',
        'finish.php' => $begin
            . 'echo "done"; fastcgi_finish_request(); gate();',
        'x.php' => $begin . 'echo $_SERVER["DBGUARD_VERDICT"] ?? "none";',
    },
    docroot_config => 'DBGuard On',
});
my ($apache, $dir) = ($stack->apache, $stack->dir);
$apache->set(config => <<"END");
DBGuardEngine On
DBGuardBudget 2
DBGuardQueue length=1 patience=30s
<FilesMatch "\\.php\$">
SetHandler "proxy:unix:$dir/fpm.sock|fcgi://localhost"
</FilesMatch>
END
my $user = $> == 0 ? "user = www-data\ngroup = www-data\n"
    . "listen.owner = www-data\nlisten.group = www-data\n" : '';
spew("$dir/fpm.conf", <<"END");
[global]
error_log = $dir/fpm.log
daemonize = no
[www]
${user}listen = $dir/fpm.sock
pm = static
pm.max_children = 6
END

my $process;

sub start_fpm
{
    unlink "$dir/fpm.sock";
    $process = DBGuard::Process->spawn(output => "$dir/fpm.out",
        command => [$fpm, '-F', '-n', '-y', "$dir/fpm.conf"]);
    wait_until(sub {
        die "php-fpm does not start:\n" . slurp("$dir/fpm.log")
            if !$process->alive;
        -S "$dir/fpm.sock";
    }, 10, 'php-fpm to start');
}

start_fpm();
$stack->start;

my $gates = 0;

# [request, gate]
sub hold
{
    my ($path) = @_;
    my $gate = "$dir/gate." . ++$gates;
    return [$apache->get_async("/$path?gate=$gate"), $gate];
}

sub open_gate { spew($_->[1], '') for @_ }
sub began { length(slurp($apache->dir . '/sessions/began') // '') }

sub is_board
{
    my ($held, $waiting, $name) = @_;
    my $last;
    my $ok = eval {
        wait_until(sub {
            my $auto = $apache->status_auto;
            $last = "$auto->{DBGuardHeld} held, $auto->{DBGuardWaiting} wait";
            $last eq "$held held, $waiting wait";
        }, 10, $name);
    };
    ok($ok, $name) or diag $last;
}

subtest 'the budget, the queue, and a refusal' => sub {
    my @holds = map { hold('hold.php') } 1, 2;
    is_board(2, 0, 'two tokens are out');
    wait_until(sub { began() == 2 }, 10, 'both to run');
    my $waits = $apache->get_async('/x.php');
    is_board(2, 1, 'the third waits');
    my $refused = $apache->get('/x.php');
    is($refused->{status}, 503, 'the fourth is refused');
    ok($refused->{headers}{'retry-after'}, '... and told when to return');
    is($apache->get('/static.txt')->{status}, 200, 'files are served');
    is(began(), 2, 'php-fpm has heard of two');
    open_gate($holds[0]);
    is($holds[0][0]->response->{body}, 'done', 'one ends');
    is($waits->response->{body}, 'waited', 'the one that waited runs, and is'
        . ' told its verdict');
    open_gate($holds[1]);
    is($holds[1][0]->response->{status}, 200, 'the other one ends');
    is_board(0, 0, 'every token is back');
};

subtest 'when the token comes back' => sub {
    my $holds = hold('shutdown.php');
    wait_until(sub { began() == 4 }, 10, 'it to run');
    is_board(1, 0, 'out while shutdown functions run');
    open_gate($holds);
    is($holds->[0]->response->{body}, 'done', 'the answer');
    is_board(0, 0, 'back when they have ended');

    $holds = hold('finish.php');
    is($holds->[0]->response->{body}, 'done', 'fastcgi_finish_request()');
    is_board(0, 0, 'back although the script goes on, as the guide says');
    open_gate($holds);
};

subtest 'a client that hangs up' => sub {
    my $holds = hold('hold.php');
    wait_until(sub { began() == 6 }, 10, 'it to run');
    $holds->[0]->close;
    is_board(1, 0, 'its token stays out while PHP runs');
    open_gate($holds);
    is_board(0, 0, 'and comes back then');
};

subtest 'php-fpm is killed' => sub {
    my @holds = map { hold('hold.php') } 1, 2;
    wait_until(sub { began() == 8 }, 10, 'both to run');
    DBGuard::Process::kill_members($process->pid);
    like($_->[0]->response->{status}, qr/^50[0-9]$/, 'an error') for @holds;
    is_board(0, 0, 'every token is back');
    is($apache->get('/x.php')->{status}, 503, 'nobody is there');
    is_board(0, 0, 'no token was lost by asking');
    $process->stop('TERM', 0);
    start_fpm();
    wait_until(sub { $apache->get('/x.php')->{status} == 200 }, 30,
        'httpd to try it again');
    pass('and when it is back it is used');
};

subtest "kill -9 of httpd's children" => sub {
    my $before = began();
    my @holds = map { hold('hold.php') } 1, 2;
    wait_until(sub { began() == $before + 2 }, 10, 'both to run');
    kill KILL => $apache->workers;
    is_board(0, 0, 'every token is back');
    open_gate(@holds);
    $_->[0]->close for @holds;
};

$process->stop('TERM', 5);
unlike($apache->error_log, qr/dbguard:(?:error|crit|alert|emerg)\]/,
    'the module has nothing to complain of');

done_testing;
