own
set -- --no-defaults --skip-name-resolve --innodb-use-native-aio=0 --log-warnings=1 --innodb-log-file-size=16M --character-set-server=utf8mb4
install -d -o mysql -g mysql -m 0755 /run/mysqld
if fresh; then
	as mariadbd "$@" --datadir=$data/new --bootstrap < $run/settings
	keep
fi
if full; then
	set -- "$@" --transaction-read-only=ON
	echo "The volume is full, so transactions are read-only. Drop tables with SET STATEMENT tx_read_only=0 FOR DROP TABLE, and restart the service." >&2
fi
enter mariadbd "$@" --datadir=$data/server --socket=/run/mysqld/mysqld.sock --pid-file=/run/mysqld/mysqld.pid --port=3306 --bind-address='*'
