# A rewrite of the file of commands needs room for the data beside that file, which is rewritten when it
# has half as much again. So data take no more than a quarter of the volume, nor half of the memory, and as much
# is kept for a file that has filled the rest.
size=$(($(stat -f -c '%b*%S/1048576' $data)))
most=$(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) / 2048))
[ $most -le $((size / 4)) ] || most=$((size / 4))

# ask runs a command of the server that compact has started.
ask() { redis-cli -s /tmp/redis.sock "$@"; }

# compact rewrites the file of commands, so that it has nothing but the present data.
compact() {
	setpriv --reuid="$user" --regid="$user" --init-groups -- redis-server $run/redis.conf --port 0 --unixsocket /tmp/redis.sock --requirepass '' &
	server=$!
	until [ "$(ask PING 2> /dev/null)" = PONG ]; do
		kill -0 $server 2> /dev/null || return 0 # the server itself says why
		sleep 0.1
	done
	ask BGREWRITEAOF > /dev/null
	while ask INFO persistence | grep -q 'aof_rewrite_\(in_progress\|scheduled\):1'; do sleep 0.1; done
	ask SHUTDOWN NOSAVE
	wait $server
}

own
as mkdir -p $data/server
rm -f $data/server/temp-* # of a rewrite that was cut off
chmod 0711 $run
install -o redis -g redis -m 0400 $run/settings $run/redis.conf
reserve=$most
if full $reserve; then
	compact
	if full $reserve; then
		most=0
		echo "The volume is full, so commands that need memory are refused. Delete keys, and restart the service." >&2
	fi
fi
enter redis-server $run/redis.conf --maxmemory $((most * 1048576 + 1)) --auto-aof-rewrite-percentage 50 --auto-aof-rewrite-min-size $((size / 16 * 1048576))
