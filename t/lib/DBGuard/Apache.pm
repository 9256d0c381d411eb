# A private Apache httpd on a free port of 127.0.0.1.
#
# Invariants:
#  - It reads one configuration, written here; everything it writes is in its
#    folder. /server-status is always on, with ExtendedStatus.
#  - All workers are there from the beginning and none is retired, so what a
#    test sees does not depend on the MPM's warm-up.
#  - The access log has the same columns with and without the module.
#  - The port stays the same from one start to the next, unless somebody else
#    takes it in between.
package DBGuard::Apache;

use strict;
use warnings;
use Carp qw(croak);
use File::Basename qw(dirname);
use File::Copy qw(copy);
use File::Find qw(find);
use File::Path qw(make_path);
use DBGuard::Client;
use DBGuard::Process;

*wait_until = \&DBGuard::Process::wait_until;
*slurp = \&DBGuard::Stack::slurp;
*spew = \&DBGuard::Stack::spew;

my $lib = dirname(__FILE__) . '/..';
my $owner = $$;
my @instances;

# arg:
#   dir             where to live
#   db              a DBGuard::MariaDB that PHP's db() connects to
#   guard           load the module (default 1)
#   module          its file, when it is not the one that was built
#   mpm             prefork (default), worker, event
#   workers         MaxRequestWorkers (default 16)
#   threads         ThreadsPerChild of worker and event (default 8)
#   start_servers   default: all of them
#   php, cgi, http2 load these (default 0; PHP needs prefork)
#   modules         [names of further modules, 'rewrite' for mod_rewrite.so;
#                   or [name, file]]
#   config          text at server level, after everything else; ${DOCROOT}
#                   is the docroot
#   docroot_config  text inside the <Directory> of the docroot
#   docroot         folder to copy (default: t/lib/www)
#   files           { path in the docroot => content }; *.cgi is executable
#   php_ini         { name => value }
#   log_level       default: info for the module, warn for the rest
sub new
{
    my ($class, %arg) = @_;
    my $self = bless {
        guard => 1, mpm => 'prefork', workers => 16, threads => 8,
        modules => [], config => '', docroot_config => '', files => {},
        php_ini => {}, docroot => "$lib/www",
        module => DBGuard::Stack::builddir() . '/.libs/mod_dbguard.so', %arg,
    }, $class;

    croak "$self->{module} is not built"
        if $self->{guard} && !-e $self->{module};
    $self->{port} = DBGuard::Stack::free_port();
    make_path(map { "$self->{dir}/$_" } qw(conf log run www php sessions));
    $self->copy_docroot;
    $self->write_file($_, $self->{files}{$_}) for keys %{ $self->{files} };
    copy_file("$lib/php/db.php", "$self->{dir}/php/db.php");
    spew("$self->{dir}/log/php.log", '');
    if ($> == 0) {
        my ($uid, $gid) = (getpwnam 'www-data')[2, 3];
        chown $uid, $gid, "$self->{dir}/log/php.log", "$self->{dir}/sessions";
    }
    $self->write_config;
    push @instances, $self;
    return $self;
}

# A sanitizer's report fails the test that made it, whatever else it checks.
END {
    for my $self ($$ == $owner ? @instances : ()) {
        my $log = join '', map { slurp($_) } glob "$self->{dir}/log/*.log";
        next if $log
            !~ /^(.*(?:ERROR: \w+Sanitizer|runtime error:).*\n(?:.*\n){0,20})/m;
        print STDERR $1 =~ s/^/# /gmr;
        DBGuard::Process::fail_at_end();
    }
}

sub port { $_[0]{port} }
sub dir { $_[0]{dir} }
sub docroot { "$_[0]{dir}/www" }
sub runtime_dir { "$_[0]{dir}/run" }
sub scoreboard { "$_[0]{dir}/run/dbguard.scoreboard" }
sub url { "http://127.0.0.1:$_[0]{port}" . ($_[1] // '') }
sub running { $_[0]{process} && $_[0]{process}->alive }
sub parent { $_[0]{process} && $_[0]{process}->pid }

# ---- finding httpd

my %apxs;

sub apxs
{
    my ($name, $default) = @_;
    $apxs{$name} //= do {
        my $value = `apxs -q $name 2>/dev/null` // '';
        chomp $value;
        $value || $default;
    };
    return $apxs{$name};
}

sub httpd
{
    return apxs('SBINDIR', '/usr/sbin') . '/' . apxs('PROGNAME', 'apache2');
}

my %built_in;

sub load_module
{
    my ($name, $file) = @_;
    if (!%built_in) {
        my $list = join ' ', httpd(), '-l';
        %built_in = map { $_ => 1 } `$list` =~ /mod_(\w+)\.c/g;
    }
    return '' if $built_in{$name};
    $file //= apxs('LIBEXECDIR', '/usr/lib/apache2/modules') . "/mod_$name.so";
    return "LoadModule ${name}_module $file\n";
}

# ---- the configuration

# Changes arguments of new() for the next start or restart.
sub set
{
    my ($self, %arg) = @_;
    @$self{keys %arg} = values %arg;
    $self->write_config;
}

sub config_file { "$_[0]{dir}/conf/httpd.conf" }

sub write_config
{
    my ($self) = @_;
    spew($self->config_file, join '', $self->load_modules, $self->base_config,
        $self->mpm_config, $self->log_config, $self->docroot_section,
        $self->php_config, $self->db_config, "$self->{config}\n");
}

sub load_modules
{
    my ($self) = @_;
    my $threaded = $self->{mpm} ne 'prefork';
    my @names = (
        "mpm_$self->{mpm}", qw(unixd log_config logio authz_core authz_host),
        qw(mime dir alias env setenvif status),
        $self->{cgi} ? ($threaded ? 'cgid' : 'cgi') : (),
        $self->{http2} ? 'http2' : (),
        @{ $self->{modules} },
        $self->{php} ? [php => $self->php_module] : (),
        $self->{guard} ? [dbguard => $self->{module}] : (),
    );
    return map { load_module(ref $_ ? @$_ : $_) } @names;
}

sub php_module
{
    my ($self) = @_;
    my $folder = apxs('LIBEXECDIR', '/usr/lib/apache2/modules');
    my ($file) = reverse sort glob "$folder/libphp*.so";
    return $file // croak "no libphp*.so in $folder";
}

sub base_config
{
    my ($self) = @_;
    my $dir = $self->{dir};
    my $user = $> == 0 ? "User www-data\nGroup www-data\n" : '';
    my $http2 = $self->{http2} ? "Protocols h2c http/1.1\n" : '';
    my $cgid = $self->{cgi} && $self->{mpm} ne 'prefork'
        ? "ScriptSock $dir/run/cgisock\n" : '';
    return <<"END";
ServerRoot $dir
ServerName 127.0.0.1:$self->{port}
Listen 127.0.0.1:$self->{port}
${user}DefaultRuntimeDir $dir/run
PidFile $dir/run/httpd.pid
Mutex file:$dir/run default
$http2${cgid}TypesConfig /dev/null
AddType text/html .html
AddType text/plain .txt
DirectoryIndex index.html index.php
ExtendedStatus On
<Location /server-status>
SetHandler server-status
</Location>
END
}

sub mpm_config
{
    my ($self) = @_;
    my $workers = $self->{workers};

    if ($self->{mpm} eq 'prefork') {
        my $start = $self->{start_servers} // $workers;
        return <<"END";
ServerLimit $workers
MaxRequestWorkers $workers
StartServers $start
MinSpareServers 1
MaxSpareServers $workers
END
    }
    my $threads = $self->{threads} < $workers ? $self->{threads} : $workers;
    my $children = int(($workers + $threads - 1) / $threads);
    my $start = $self->{start_servers} // $children;
    my $total = $children * $threads;
    return <<"END";
ServerLimit $children
ThreadLimit $threads
ThreadsPerChild $threads
MaxRequestWorkers $total
StartServers $start
MinSpareThreads 1
MaxSpareThreads $total
END
}

sub log_config
{
    my ($self) = @_;
    my $level = $self->{log_level}
        // ($self->{guard} ? 'warn dbguard:info' : 'warn');
    my $items = $self->{guard}
        ? '%^DV %^DW %^DH %^DC \"%^DE\"' : '- - - - \"-\"';
    return <<"END";
LogLevel $level
ErrorLog $self->{dir}/log/error.log
LogFormat "%>s %D $items \\"%r\\"" test
CustomLog $self->{dir}/log/access.log test
END
}

sub docroot_section
{
    my ($self) = @_;
    my $cgi = $self->{cgi}
        ? "Options +ExecCGI\nAddHandler cgi-script .cgi\n" : '';
    return <<"END";
Define DOCROOT $self->{dir}/www
DocumentRoot $self->{dir}/www
<Directory $self->{dir}/www>
Require all granted
$cgi$self->{docroot_config}
</Directory>
END
}

sub php_config
{
    my ($self) = @_;
    my $dir = $self->{dir};

    return '' if !$self->{php};
    my %ini = (
        'error_log' => "$dir/log/php.log", 'log_errors' => '1',
        'display_errors' => '0', 'include_path' => ".:$dir/php",
        'session.save_path' => "$dir/sessions", %{ $self->{php_ini} },
    );
    return "<FilesMatch \\.php\$>\nSetHandler application/x-httpd-php\n"
        . "</FilesMatch>\n"
        . join '', map { "php_admin_value $_ \"$ini{$_}\"\n" } sort keys %ini;
}

# What php/db.php needs.
sub db_config
{
    my ($self) = @_;
    my $db = $self->{db} or return '';
    my %env = (
        SOCKET => $db->socket, USER => $db->user, PASSWORD => $db->password,
        NAME => $db->database,
    );
    return map { "SetEnv DB_$_ $env{$_}\n" } sort keys %env;
}

# ---- the docroot

sub write_file
{
    my ($self, $path, $content) = @_;
    my $file = $self->docroot . "/$path";
    make_path(dirname($file));
    spew($file, $content, $path =~ /\.cgi$/ ? 0755 : 0644);
}

sub copy_docroot
{
    my ($self) = @_;
    my $from = $self->{docroot};
    find({ no_chdir => 1, wanted => sub {
        return if !-f;
        my $to = $self->docroot . substr $_, length $from;
        make_path(dirname($to));
        copy_file($_, $to);
    } }, $from);
}

sub copy_file
{
    my ($from, $to) = @_;
    copy($from, $to) or croak "$from: $!";
    chmod 0644, $to;
}

# ---- life

# Exit code and output of httpd -t.
sub configtest
{
    my ($self) = @_;
    local %ENV = (%ENV, $self->preload);
    return DBGuard::Process::run(httpd(), '-f', $self->config_file, '-t');
}

# Exit code and output of dbguardctl on this server's scoreboard.
sub ctl
{
    my ($self, @arg) = @_;
    return DBGuard::Process::run(DBGuard::Stack::dbguardctl(),
        '-f', $self->scoreboard, @arg);
}

# A module built with sanitizers needs their library in the program first.
sub preload
{
    my ($self) = @_;
    my $library = $ENV{DBGUARD_PRELOAD} or return;
    my $shim = "$self->{dir}/nodeepbind.so";

    if (!-e $shim) {
        my @command = (qw(cc -D_GNU_SOURCE -shared -fPIC -o), $shim,
            "$lib/nodeepbind.c");
        system(@command) == 0 or croak "failed: @command";
    }
    return (
        LD_PRELOAD => "$shim:$library",
        ASAN_OPTIONS => join ':', $ENV{ASAN_OPTIONS} // (),
            'verify_asan_link_order=0',
    );
}

# Starts, or dies with what httpd said.
sub start
{
    my ($self) = @_;
    my $failure = $self->try_start;
    croak "httpd does not start:\n" . DBGuard::Stack::tail($failure)
        if defined $failure;
    return $self;
}

# Returns nothing when httpd is up, or what it said when it is not.
sub try_start
{
    my ($self) = @_;
    croak 'httpd runs already' if $self->running;

    # A port may be taken between its choice and its use.
    for (1 .. 5) {
        my $failure = $self->launch // return;
        return $failure if $failure !~ /could not bind to address/;
        $self->{port} = DBGuard::Stack::free_port();
        $self->write_config;
    }
    return 'no free port';
}

sub launch
{
    my ($self) = @_;
    my $output = "$self->{dir}/log/stdout." . ++$self->{launches} . '.log';
    my $starts = $self->generations;

    $self->kill;
    $self->{process} = DBGuard::Process->spawn(
        output => $output, env => { $self->preload },
        command => [httpd(), '-f', $self->config_file, '-DFOREGROUND']);
    wait_until(sub { !$self->running || $self->generations > $starts },
        60, 'httpd to start');
    return if $self->running;
    $self->kill;
    return slurp($output) . $self->error_log;
}

# How often the server has become ready, cold or by a restart.
sub generations
{
    my ($self) = @_;
    my $lines = () = $self->error_log =~ /resuming normal operations/g;
    return $lines;
}

# 'graceful' or 'hard'; returns when the new generation is ready.
sub restart
{
    my ($self, $how) = @_;
    my $signal = { graceful => 'USR1', hard => 'HUP' }->{ $how // 'graceful' };
    my $before = $self->generations;

    $self->signal($signal);
    wait_until(sub { !$self->running || $self->generations > $before },
        60, 'httpd to restart');
    croak "httpd did not survive the restart:\n"
        . DBGuard::Stack::tail($self->error_log) if !$self->running;
}

sub signal { $_[0]{process}->signal($_[1]) }

sub stop
{
    my ($self) = @_;
    my $process = delete $self->{process} or return;
    return $process->stop('TERM', 20);
}

# Everything at once and without a word, as a power cut would.
sub kill
{
    my ($self) = @_;
    my $process = delete $self->{process} or return;
    DBGuard::Process::kill_members($process->pid);
    $process->stop('KILL', 10);
}

# The processes that serve requests. mod_cgid's daemon is another child: the
# one that holds the sockets with that name, its own and accepted ones.
sub workers
{
    my ($self) = @_;
    my $sockets = slurp('/proc/net/unix');
    my %daemon = map { ("socket:[$_]" => 1) }
        $sockets =~ /(\d+) \Q$self->{dir}\E\/run\/cgisock/g;
    return grep {
        my $pid = $_;
        slurp("/proc/$pid/cmdline") =~ /^\Q@{[httpd()]}\E\0/
            && !grep { $daemon{readlink($_) // ''} } glob "/proc/$pid/fd/*";
    } DBGuard::Process::children_of($self->parent);
}

# ---- logs

sub error_log { slurp("$_[0]{dir}/log/error.log") }
sub php_log { slurp("$_[0]{dir}/log/php.log") }
sub access_log { split /\n/, slurp("$_[0]{dir}/log/access.log") }

# The access log's lines as hashes.
sub access_entries
{
    my ($self) = @_;
    my @names = qw(status us verdict wait hold class endpoint request);
    return map {
        my %entry;
        @entry{@names} = /^(\S+) (\S+) (\S+) (\S+) (\S+) (\S+) "(.*?)" "(.*)"$/;
        \%entry;
    } $self->access_log;
}

# Waits for a line of the error log that matches; returns what matched.
sub wait_log
{
    my ($self, $regex, $timeout) = @_;
    return wait_until(sub { $self->error_log =~ $regex ? $& : '' },
        $timeout // 10,
        sub { "$regex in\n" . DBGuard::Stack::tail($self->error_log) });
}

# ---- requests

# Sends a request and returns without waiting: see DBGuard::Client.
# arg: headers => {}, body, keepalive, socket, address.
sub open_request
{
    my ($self, $method, $path, %arg) = @_;
    return DBGuard::Client->new(%arg, port => $self->{port},
        method => $method, path => $path);
}

sub get_async
{
    my ($self, $path, %headers) = @_;
    return $self->open_request('GET', $path, headers => \%headers);
}

sub request
{
    my ($self, @arg) = @_;
    return $self->open_request(@arg)->response;
}

sub get
{
    my ($self, $path, %headers) = @_;
    return $self->get_async($path, %headers)->response;
}

sub head
{
    my ($self, $path, %headers) = @_;
    return $self->request('HEAD', $path, headers => \%headers);
}

sub post
{
    my ($self, $path, $body, %headers) = @_;
    return $self->request('POST', $path, headers => \%headers, body => $body);
}

# /server-status?auto as a hash.
sub status_auto
{
    my ($self) = @_;
    my $text = $self->get('/server-status?auto')->{body};
    return { map { /^([^:]+): (.*)$/ ? ($1 => $2) : () } split /\n/, $text };
}

1;
