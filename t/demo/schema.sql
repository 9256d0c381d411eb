-- The demo application's tables and a few rows.
CREATE TABLE users (id INT PRIMARY KEY, name VARCHAR(50) NOT NULL);
CREATE TABLE sessions (token CHAR(32) PRIMARY KEY, user_id INT NOT NULL);
CREATE TABLE orders (id INT PRIMARY KEY, price INT);
CREATE TABLE items (
    id INT AUTO_INCREMENT PRIMARY KEY,
    order_id INT NOT NULL,
    name VARCHAR(50) NOT NULL,
    pieces INT NOT NULL,
    KEY (order_id)
);
CREATE TABLE errors (
    id INT AUTO_INCREMENT PRIMARY KEY,
    at DATETIME NOT NULL,
    url VARCHAR(200) NOT NULL,
    message VARCHAR(200) NOT NULL
);
INSERT INTO users VALUES (1, 'a customer');
INSERT INTO sessions VALUES ('demo', 1);
INSERT INTO orders (id) SELECT seq FROM seq_1_to_100;
INSERT INTO items (order_id, name, pieces)
    SELECT 1 + seq % 100, CONCAT('part ', seq), 1 + seq % 7 FROM seq_1_to_1000;
