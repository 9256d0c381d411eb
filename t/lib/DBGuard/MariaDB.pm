# A private mariadbd: made in a quarter of a second, thrown away afterwards.
#
# Invariants:
#  - It never reads the system's configuration and writes only in its folder.
#  - Nothing is synced to disk: it holds no data worth keeping.
#  - Passwords are in files that only their reader can open, never in an
#    argument. root@localhost is for sql(); app is the application's account,
#    with all rights on the database `app`, from 127.0.0.1 and by the socket.
#  - The folder, the data and, unless somebody else takes it in between, the
#    port stay the same from one start to the next.
package DBGuard::MariaDB;

use strict;
use warnings;
use Carp qw(croak);
use File::Path qw(make_path);
use DBGuard::Process;

*wait_until = \&DBGuard::Process::wait_until;

# arg: dir, max_connections (default 24), options => [further options].
sub new
{
    my ($class, %arg) = @_;
    my $self = bless {
        max_connections => 24, options => [], %arg,
        password => random_word(), root_password => random_word(),
    }, $class;
    return $self;
}

sub port { $_[0]{port} }
sub socket { "$_[0]{dir}/sock" }
sub user { 'app' }
sub password { $_[0]{password} }
sub database { 'app' }
sub pid { $_[0]{process} && $_[0]{process}->pid }
sub running { $_[0]{process} && $_[0]{process}->alive }
sub error_log { DBGuard::Stack::slurp("$_[0]{dir}/error.log") }

sub random_word
{
    open my $fh, '<', '/dev/urandom' or die "/dev/urandom: $!";
    read $fh, my $bytes, 12;
    return unpack 'H*', $bytes;
}

sub program
{
    my ($name) = @_;
    for (split(/:/, $ENV{PATH}), qw(/usr/sbin /usr/local/sbin /usr/bin)) {
        return "$_/$name" if -x "$_/$name";
    }
    croak "$name not found: is mariadb-server installed?";
}

sub server_options
{
    my ($self) = @_;
    return (
        '--no-defaults',
        $> == 0 ? '--user=mysql' : (),
        "--datadir=$self->{dir}/data",
        "--tmpdir=$self->{dir}/data",
        '--innodb-buffer-pool-size=8M',
        '--innodb-log-file-size=4M',
        '--innodb-data-file-path=ibdata1:4M:autoextend',
        '--innodb-temp-data-file-path=ibtmp1:4M:autoextend',
        '--innodb-autoextend-increment=1',
        '--innodb-flush-method=nosync',
        '--innodb-flush-log-at-trx-commit=0',
        '--innodb-fast-shutdown=2',
        '--innodb-buffer-pool-dump-at-shutdown=OFF',
        '--aria-pagecache-buffer-size=8M',
        '--aria-log-file-size=8M',
        '--key-buffer-size=1M',
        '--performance-schema=OFF',
        '--skip-log-bin',
    );
}

# The system tables that accounts need, and the two accounts.
sub install
{
    my ($self) = @_;
    my $dir = $self->{dir};

    make_path("$dir/data/mysql");
    if ($> == 0) {
        my ($uid, $gid) = (getpwnam 'mysql')[2, 3];
        defined $uid or croak 'no user mysql: is mariadb-server installed?';
        chown $uid, $gid, $dir, "$dir/data", "$dir/data/mysql";
    }
    my ($tables) = grep { -e } map { "/usr/share/$_/${_}_system_tables.sql" }
        qw(mysql mariadb) or croak 'the SQL of the system tables not found';
    my $sql = "use mysql;\n" . DBGuard::Stack::slurp($tables)
        . "FLUSH PRIVILEGES;\n"
        . "CREATE DATABASE app CHARACTER SET utf8mb4;\n"
        . 'CREATE USER root@localhost'
        . " IDENTIFIED BY '$self->{root_password}';\n"
        . "GRANT ALL ON *.* TO root\@localhost WITH GRANT OPTION;\n";
    for my $host (qw(localhost 127.0.0.1)) {
        $sql .= "CREATE USER app\@$host IDENTIFIED BY '$self->{password}';\n"
            . "GRANT ALL ON app.* TO app\@$host;\n";
    }
    my @command = (program('mariadbd'), $self->server_options, '--bootstrap');
    local $SIG{PIPE} = 'IGNORE';
    open my $log, '>', "$dir/install.log" or die "$dir/install.log: $!";
    my $pid = open(my $in, '|-') // die "fork: $!";
    if (!$pid) {
        open STDOUT, '>&', $log;
        open STDERR, '>&', $log;
        exec @command or POSIX::_exit(127);
    }
    print $in $sql;
    close $in or croak 'mariadbd --bootstrap failed: '
        . DBGuard::Stack::slurp("$dir/install.log");
    DBGuard::Stack::spew("$dir/client.cnf", <<"END", 0600);
[client]
user=root
password=$self->{root_password}
socket=$dir/sock
END
    $self->{installed} = 1;
}

sub start
{
    my ($self) = @_;

    croak 'mariadbd runs already' if $self->running;
    $self->install if !$self->{installed};
    # A port may be taken between its choice and its use.
    for (1 .. 5) {
        $self->{port} //= DBGuard::Stack::free_port();
        return $self if $self->launch;
        last if $self->error_log !~ /Bind on TCP\/IP port.*in use/;
        delete $self->{port};
    }
    croak "mariadbd does not start:\n" . DBGuard::Stack::tail($self->error_log);
}

sub launch
{
    my ($self) = @_;
    my $dir = $self->{dir};

    unlink "$dir/error.log", "$dir/sock";
    $self->{process} = DBGuard::Process->spawn(
        output => "$dir/error.log",
        command => [
            program('mariadbd'), $self->server_options,
            "--socket=$dir/sock", "--pid-file=$dir/pid",
            "--port=$self->{port}", '--bind-address=127.0.0.1',
            '--skip-name-resolve',
            "--max-connections=$self->{max_connections}",
            @{ $self->{options} },
        ]);
    my $up = wait_until(sub {
        !$self->running ? 'dead'
            : $self->error_log =~ /ready for connections/ ? 'up' : '';
    }, 30, 'mariadbd to start');
    return 1 if $up eq 'up';
    $self->kill;
    return 0;
}

sub stop
{
    my ($self) = @_;
    my $process = delete $self->{process} or return;
    $process->signal('CONT');
    $process->stop('TERM', 10);
}

sub kill
{
    my ($self) = @_;
    my $process = delete $self->{process} or return;
    $process->stop('KILL', 10);
}

# A stopped server accepts connections and then says nothing.
sub pause { $_[0]{process}->signal('STOP') }
sub resume { $_[0]{process}->signal('CONT') }

# Runs statements as root, who also gets in when every connection is taken.
# In list context the rows, their columns joined by tabs; otherwise the text.
sub sql
{
    my ($self, $query) = @_;

    open my $in, '-|', program('mariadb'),
        "--defaults-file=$self->{dir}/client.cnf", '--batch',
        '--skip-column-names', '--execute', $query, $self->database
        or die "mariadb: $!";
    my $text = do { local $/; <$in> } // '';
    close $in or croak "failed: $query";
    return wantarray ? split(/\n/, $text) : $text =~ s/\n\z//r;
}

sub sql_file
{
    my ($self, $file) = @_;
    return $self->sql(DBGuard::Stack::slurp($file));
}

sub status
{
    my ($self, $name) = @_;
    my ($row) = $self->sql("SHOW GLOBAL STATUS LIKE '$name'");
    return (split /\t/, $row)[1];
}

sub variable
{
    my ($self, $name) = @_;
    return scalar $self->sql("SELECT \@\@GLOBAL.$name");
}

1;
