own
# statements are those that the cluster begins with. A database that is there by another name
# takes a tenth of the time of a new one.
statements() {
	if [ ! -e /var/lib/service/database ]; then
		cat $run/settings
	elif grep -q '^CREATE DATABASE ' $run/settings; then
		sed 's/^CREATE DATABASE \("[^"]*"\) OWNER /ALTER DATABASE "engi seed" RENAME TO \1\nALTER DATABASE \1 OWNER TO /' $run/settings
	else
		echo 'DROP DATABASE "engi seed"' | cat $run/settings -
	fi
}
if fresh; then
	statements | as postgres --single -D $data/new -c exit_on_error=on -c log_min_error_statement=panic postgres > /dev/null
	keep
fi
cat > $run/pg_hba.conf <<-END
	local all all peer
	host all all all scram-sha-256
END
chmod 0755 $run
chmod 0644 $run/pg_hba.conf
install -d -o postgres -g postgres -m 2775 /run/postgresql
set --
if full; then
	set -- -c default_transaction_read_only=on
	echo "The volume is full, so transactions are read-only unless they are begun with READ WRITE. Drop or truncate tables in such a transaction, and restart the service." >&2
fi
enter postgres "$@" -D $data/server -c listen_addresses='*' -c port=5432 -c hba_file=$run/pg_hba.conf -c unix_socket_directories=/run/postgresql
