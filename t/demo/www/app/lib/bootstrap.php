<?php
// Loaded by every script of the application. It is written the way the
// application of incident 1 was: each habit below is harmless by itself.
//  - The first query opens a connection and the request keeps it to its end.
//  - Who is signed in is looked up in the database, each time anybody asks.
//  - Errors are stored in the same database.
//  - The error page is a page like any other and asks who is signed in.
// So a request that finds no connection tries three times.

function db(): mysqli
{
    static $db = null;

    if ($db === null) {
        mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT);
        try {
            $db = new mysqli('localhost', getenv('DB_USER'),
                getenv('DB_PASSWORD'), getenv('DB_NAME'), 0,
                getenv('DB_SOCKET'));
        } catch (mysqli_sql_exception $e) {
            error_log('database error ' . $e->getCode() . ' in '
                . $_SERVER['SCRIPT_NAME']);
            throw $e;
        }
    }
    return $db;
}

function current_user(): array
{
    $session = $_COOKIE['session'] ?? 'demo';
    $query = db()->prepare('SELECT u.* FROM users u JOIN sessions s'
        . ' ON s.user_id = u.id WHERE s.token = ?');
    $query->execute([$session]);
    return $query->get_result()->fetch_assoc() ?? ['name' => 'nobody'];
}

function render(string $title, string $content): void
{
    $user = htmlspecialchars(current_user()['name']);
    require __DIR__ . '/template.php';
}

function store_error(Throwable $e): void
{
    try {
        $query = db()->prepare('INSERT INTO errors (at, url, message)'
            . ' VALUES (NOW(), ?, ?)');
        $query->execute([$_SERVER['REQUEST_URI'], $e->getMessage()]);
    } catch (Throwable $again) {
        // Already in PHP's log.
    }
}

set_exception_handler(function (Throwable $e): void {
    http_response_code(500);
    store_error($e);
    try {
        render('Error', '<p>Something went wrong.</p>');
    } catch (Throwable $again) {
        echo "Internal error\n";
    }
});
