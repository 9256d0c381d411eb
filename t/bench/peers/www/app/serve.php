<?php
// Opens the request's connection, which is kept to its end, does the work and
// answers; or says which error the database gave.
require 'db.php';

function serve(callable $work): void
{
    static $db;

    try {
        $db = db();
        $work($db);
        $text = "ok\n";
    } catch (mysqli_sql_exception $e) {
        http_response_code(500);
        header('Database-Error: ' . $e->getCode());
        $text = "database error\n";
    }
    header('Content-Length: ' . strlen($text));
    echo $text;
}
