# The one place that knows how to start what the module lives between: a
# private Apache httpd, with or without the module, and a private mariadbd, in
# a temporary folder and on free ports of 127.0.0.1.
#
#     use DBGuard::Stack qw(wait_until);
#     my $stack = DBGuard::Stack->start(
#         db => { max_connections => 12 },
#         apache => {
#             workers => 20, php => 1,
#             config => "DBGuardEngine On\nDBGuardBudget 5\n",
#             docroot_config => 'DBGuard On',
#             files => { 'x.php' => '<?php echo 1;' },
#         });
#     is($stack->apache->get('/x.php')->{status}, 200);
#
# Leave out `db` or `apache` to start only the other. DBGuard::Apache and
# DBGuard::MariaDB say what they take and do.
#
# Invariants:
#  - Nothing is shared between two stacks: each has its folder and its ports.
#  - Everything is gone when the process that made it is, unless leave() was
#    called: see DBGuard::Process.
#  - As root, Apache's children are www-data and mariadbd is mysql; as anybody
#    else, all runs as that user.
package DBGuard::Stack;

use strict;
use warnings;
use Carp qw(croak);
use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(dirname);
use IO::Socket::INET;
use DBGuard::Apache;
use DBGuard::MariaDB;
use DBGuard::Process;

our @EXPORT_OK = qw(wait_until slurp spew builddir sourcedir dbguardctl);

*wait_until = \&DBGuard::Process::wait_until;

# httpd starts dbguard-monitor as www-data, who may not be let into the folder
# that it was built in: /root, for one.
sub let_monitor_be_started
{
    my $program = $ENV{DBGUARD_MONITOR} // return;

    return if $> != 0 || may_be_executed(abs_path($program) // return);
    my $dir = DBGuard::Process::temporary_folder();
    system('cp', $program, "$dir/dbguard-monitor") == 0
        or croak "$program cannot be copied";
    $ENV{DBGUARD_MONITOR} = "$dir/dbguard-monitor";
}

# By everybody: the file itself, and each folder above it is open.
sub may_be_executed
{
    my ($path) = @_;

    for (; $path ne '/'; $path = dirname($path)) {
        return 0 if !((stat $path)[2] & 1);
    }
    return 1;
}

let_monitor_be_started();

# arg: apache => {}, db => {}, dir (default: a new temporary folder).
sub new
{
    my ($class, %arg) = @_;
    my $dir = $arg{dir} // DBGuard::Process::temporary_folder();

    mkdir $dir;
    chmod 0755, $dir;
    my $self = bless { dir => $dir }, $class;
    if ($arg{db}) {
        mkdir "$dir/db";
        $self->{db} = DBGuard::MariaDB->new(%{ $arg{db} }, dir => "$dir/db");
    }
    if ($arg{apache}) {
        mkdir "$dir/httpd";
        $self->{apache} = DBGuard::Apache->new(%{ $arg{apache} },
            dir => "$dir/httpd", db => $self->{db});
    }
    return $self;
}

# On the class: makes and starts a stack. On a stack: starts what is down.
sub start
{
    my ($self, @arg) = @_;
    $self = $self->new(@arg) if !ref $self;
    for my $part (grep { $_ && !$_->running } @$self{qw(db apache)}) {
        $part->start;
    }
    return $self;
}

sub apache { $_[0]{apache} }
sub db { $_[0]{db} }
sub dir { $_[0]{dir} }

sub stop
{
    my ($self) = @_;
    $_->stop for grep { $_ } @$self{qw(apache db)};
}

# Lets everything that was started so far live on after this process, and
# writes to the file what stop_left() needs.
sub leave
{
    my ($file) = @_;
    spew($file, join '', map { "$_\n" } DBGuard::Process::leave());
}

sub stop_left
{
    my ($file) = @_;
    DBGuard::Process::end_left(split /\n/, slurp($file));
    unlink $file;
}

# ---- helpers of all parts

sub free_port
{
    my $socket = IO::Socket::INET->new(
        LocalAddr => '127.0.0.1', LocalPort => 0, Proto => 'tcp', Listen => 1)
        or die "no free port: $!";
    return $socket->sockport;
}

sub slurp
{
    my ($file) = @_;
    open my $fh, '<', $file or return '';
    local $/;
    return <$fh> // '';
}

sub spew
{
    my ($file, $text, $mode) = @_;
    my $old = umask(defined $mode ? ~$mode & 0777 : 022);
    open my $fh, '>', $file or croak "$file: $!";
    print $fh $text;
    close $fh or croak "$file: $!";
    umask $old;
    chmod $mode, $file if defined $mode;
}

sub tail
{
    my ($text) = @_;
    my @lines = split /\n/, $text;
    return join "\n", @lines > 20 ? @lines[-20 .. -1] : @lines;
}

sub sourcedir { abs_path(dirname(__FILE__) . '/../../..') }
sub builddir { $ENV{DBGUARD_BUILDDIR} // sourcedir() }
sub dbguardctl { builddir() . '/dbguardctl' }

1;
