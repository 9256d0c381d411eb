<?php
// A page of the peers' bench: connects, lets the database work for a while, and
// ends. When the database refuses, it says so and is an error 500.
function work(callable $with_connection): void
{
    mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT);
    try {
        $with_connection(new mysqli('localhost', getenv('DB_USER'),
            getenv('DB_PASSWORD'), getenv('DB_NAME'), 0, getenv('DB_SOCKET')));
        echo "done\n";
    } catch (mysqli_sql_exception $e) {
        http_response_code(500);
        echo 'error ', $e->getCode(), "\n";
    }
}
