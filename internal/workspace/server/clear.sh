# Kills what a server that has ended has left: it would keep the data to itself, or serve
# on as if nothing had happened. The argument is the user of the server.
for i in 1 2 3 4 5 6 7 8 9 10; do
	left=$(stat -c '%U %n' /proc/[0-9]* 2>/dev/null | sed -n "s|^$1 /proc/||p")
	[ -n "$left" ] || exit 0
	kill -9 $left 2>/dev/null || :
	sleep 0.1
done
echo "it does not end" >&2
exit 1
