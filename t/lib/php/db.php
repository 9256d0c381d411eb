<?php
// What `require 'db.php'` gives the tests' pages: db() connects to the stack's
// database, and throws when it cannot.
function db(bool $persistent = false): mysqli
{
    mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT);
    return new mysqli($persistent ? 'p:localhost' : 'localhost',
        getenv('DB_USER'), getenv('DB_PASSWORD'), getenv('DB_NAME'), 0,
        getenv('DB_SOCKET'));
}
