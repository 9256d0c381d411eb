# Starts servers for the tests and sees to it that none outlives them.
#
# Invariants:
#  - Every server runs in a session of its own. "The server and all it started"
#    is the set of processes with that session or group, so nothing is ever
#    looked up by name.
#  - A leader is not reaped before the rest of its session is gone: until then
#    its pid, the session's name, cannot be given to a stranger.
#  - Whatever is registered is ended and removed at END, on SIGINT, SIGTERM and
#    SIGHUP, and, should this process be killed outright, by a keeper that
#    notices the end of a pipe.
package DBGuard::Process;

use strict;
use warnings;
use Carp qw(croak);
use File::Path qw(remove_tree);
use File::Temp;
use POSIX qw(:sys_wait_h);
use Time::HiRes qw(sleep time);

our (%servers, %folders, $keeper);
my $owner = $$;

# Polls until the code answers true, and returns that answer. Dies with what
# it was waiting for, which may be a sub when the reason is only known then.
sub wait_until
{
    my ($code, $timeout, $what) = @_;
    my $end = time + $timeout;

    while (1) {
        my $answer = $code->();
        return $answer if $answer;
        last if time > $end;
        sleep 0.01;
    }
    $what = $what->() if ref $what;
    croak "waited ${timeout}s for $what";
}

# The fields of /proc/PID/stat after the command's name, or nothing.
sub stat_of
{
    my ($pid) = @_;
    open my $fh, '<', "/proc/$pid/stat" or return;
    my $line = <$fh> // return;
    return split ' ', $line =~ s/^.*\)//sr;
}

# A pid together with its start time names a process for good.
sub identity
{
    my @stat = stat_of($_[0]) or return '';
    return "$_[0]:$stat[19]";
}

sub processes
{
    my ($wanted) = @_;
    opendir my $proc, '/proc' or die "/proc: $!";
    return grep {
        my @stat = /^\d+$/ ? stat_of($_) : ();
        @stat && $stat[0] !~ /[ZX]/ && $wanted->(@stat);
    } readdir $proc;
}

sub children_of
{
    my ($pid) = @_;
    return processes(sub { $_[1] == $pid });
}

# Everything that belongs to the server with this leader, itself included.
sub members
{
    my ($leader) = @_;
    return processes(sub { $_[2] == $leader || $_[3] == $leader });
}

sub kill_members
{
    my ($leader) = @_;
    for (1 .. 1000) {
        my @pids = members($leader) or return;
        kill KILL => @pids;
        sleep 0.005;
    }
    die "processes of $leader do not die";
}

# Runs a command to its end; its exit code and what it wrote.
sub run
{
    my (@command) = @_;
    my $pid = open(my $out, '-|') // die "fork: $!";
    if (!$pid) {
        open STDERR, '>&', \*STDOUT;
        { no warnings; exec { $command[0] } @command }
        syswrite STDOUT, "$command[0]: $!\n";
        POSIX::_exit(127);
    }
    my $text = do { local $/; <$out> } // '';
    close $out;
    # As a shell says it of a program that a signal ended.
    return ($? & 127 ? 128 + ($? & 127) : $? >> 8, $text);
}

# Runs a command in a new session with its output in a file. The object knows
# the leader's pid.
sub spawn
{
    my ($class, %arg) = @_;

    guard();
    my $pid = fork // die "fork: $!";
    if (!$pid) {
        POSIX::setsid();
        $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP PIPE CHLD);
        %ENV = (%ENV, %{ $arg{env} // {} });
        open STDIN, '<', '/dev/null';
        open STDOUT, '>>', $arg{output};
        open STDERR, '>&', \*STDOUT;
        { no warnings; exec { $arg{command}[0] } @{ $arg{command} } }
        syswrite STDOUT, "$arg{command}[0]: $!\n";
        POSIX::_exit(127);
    }
    my $self = bless { pid => $pid }, $class;
    $servers{$pid} = $self;
    tell_keeper("+$pid");
    return $self;
}

sub pid { $_[0]{pid} }

# Does not reap: see above.
sub alive
{
    my ($self) = @_;
    my @stat = stat_of($self->{pid});
    return @stat && $stat[0] !~ /[ZX]/;
}

sub signal
{
    my ($self, $name) = @_;
    return kill $name => $self->{pid};
}

# Asks the leader to end, and ends by force whatever is left after the grace
# time. Returns the leader's wait status.
sub stop
{
    my ($self, $signal, $grace) = @_;

    if ($self->alive) {
        $self->signal($signal);
        my $end = time + $grace;
        sleep 0.01 while $self->alive && time < $end;
    }
    kill_members($self->{pid});
    waitpid $self->{pid}, 0;
    my $status = $?;
    $self->release;
    return $status;
}

# Lets the server live on after this process.
sub release
{
    my ($self) = @_;
    delete $servers{ $self->{pid} };
    tell_keeper("-$self->{pid}");
}

# A new one that everybody may pass through, as the servers' users do; removed
# at the end.
sub temporary_folder
{
    my $dir = File::Temp::tempdir('dbguard-XXXXXXXX', TMPDIR => 1);

    remove_later($dir);
    chmod 0755, $dir;
    return $dir;
}

# Registers a folder to be removed at the end, or takes it back.
sub remove_later
{
    my ($folder) = @_;
    guard();
    $folders{$folder} = 1;
    tell_keeper("/$folder");
}

sub keep_folder
{
    my ($folder) = @_;
    delete $folders{$folder};
    tell_keeper("!$folder");
}

sub remove_now
{
    my ($folder) = @_;
    remove_tree($folder);
    keep_folder($folder);
}

# Hands over all servers and folders; returns their names for end_left().
sub leave
{
    my @names = ((map { identity($_) } keys %servers), keys %folders);
    $_->release for values %servers;
    keep_folder($_) for keys %folders;
    return @names;
}

# Ends what an earlier process left. A pid whose start time is another one is
# not ours any more.
sub end_left
{
    my (@names) = @_;
    my @folders = grep { m{^/} } @names;
    my @pids = map { /^(\d+):/ && identity($1) eq $_ ? $1 : () } @names;

    kill TERM => @pids;
    my $end = time + 20;
    sleep 0.01 while time < $end && grep { members($_) } @pids;
    kill_members($_) for @pids;
    remove_tree(@folders);
}

# ---- the end

my $status_at_end = 0;

# Makes this process fail although its tests passed.
sub fail_at_end { $status_at_end = 1 }

sub clean_up
{
    return if $$ != $owner;
    local ($?, $@, $!);
    for my $server (values %servers) {
        kill_members($server->{pid});
        waitpid $server->{pid}, 0;
        $server->release;
    }
    remove_now($_) for keys %folders;
}

END {
    clean_up();
    $? = 1 if $$ == $owner && $status_at_end && $? == 0;
}

# The first thing to be cleaned up puts the handlers in place and starts the
# keeper, which learns of each server and folder through the pipe.
sub guard
{
    return if $keeper;
    for my $name (qw(INT TERM HUP)) {
        next if $SIG{$name} && $SIG{$name} ne 'DEFAULT';
        $SIG{$name} = sub {
            clean_up();
            $SIG{$name} = 'DEFAULT';
            kill $name => $$;
        };
    }
    pipe my $reader, $keeper or die "pipe: $!";
    my $pid = fork // die "fork: $!";
    if ($pid) {
        $keeper->autoflush(1);
        return waitpid $pid, 0;
    }
    # Forked twice, so that a test that waits for its children never meets it.
    POSIX::_exit(0) if fork;
    close $keeper;
    POSIX::setsid();
    $SIG{$_} = 'IGNORE' for qw(INT TERM HUP PIPE);
    open STDIN, '<', '/dev/null';
    open STDOUT, '>', '/dev/null';
    open STDERR, '>', '/dev/null';
    keep($reader);
    POSIX::_exit(0);
}

sub keep
{
    my ($reader) = @_;
    my (%pids, %dirs);

    while (my $line = <$reader>) {
        my ($what, $name) = $line =~ /^(.)(.*)$/ or next;
        $pids{$name} = 1 if $what eq '+';
        delete $pids{$name} if $what eq '-';
        $dirs{$name} = 1 if $what eq '/';
        delete $dirs{$name} if $what eq '!';
    }
    kill_members($_) for keys %pids;
    remove_tree(keys %dirs);
}

sub tell_keeper
{
    my ($line) = @_;
    local $SIG{PIPE} = 'IGNORE';
    print $keeper "$line\n" if $keeper && $$ == $owner;
}

1;
