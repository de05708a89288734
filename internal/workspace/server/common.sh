# The argument is the user of the server.
set -eu
umask 077
user=$1 data=/data run=/run/service

# as runs a command as the user of the server.
as() { setpriv --reuid="$user" --regid="$user" --init-groups -- "$@"; }

# Nothing but the server uses the volume.
own() {
	chown "$user:" $data
	chmod 0700 $data
}

# fresh says whether there are no data yet, and begins with those of the template, which a
# new volume has.
fresh() {
	[ ! -e $data/server ] || return 1
	rm -rf $data/new # of a start that was cut off
	mv -T $data/seed $data/new 2> /dev/null || as cp -R --sparse=always /var/lib/service/seed $data/new
}

# keep has the data that were made take their place.
keep() {
	sync -f $data/new
	mv -T $data/new $data/server
	sync $data
}

# full says whether the volume is full: fewer than 24 MiB were free at a start, and there have not
# been 32 MiB more than the reserve since. A server that has filled its volume needs room to start
# again, for its log at least. So some of the volume is kept for that moment, and kept again once there
# is room. The argument is the size of the reserve in MiB, 32 if there is none.
full() {
	rm -f $data/spare # of a start that was cut off
	room=$(($(stat -f -c '%a*%S/1048576' $data)))
	if [ -e $data/reserve ] && [ $room -lt 24 ]; then
		mv -T $data/reserve $data/full # needs no room
	elif [ ! -e $data/reserve ] && [ $room -ge $((${1:-32} + 32)) ]; then
		rm -f $data/full
		if fallocate -l ${1:-32}M $data/spare; then
			mv -T $data/spare $data/reserve
		fi # a volume need not have one
	fi
	[ -e $data/full ] || return 1
	: > $data/full # gives the room
	sync $data
}

# enter goes on as the server.
enter() { exec setpriv --reuid="$user" --regid="$user" --init-groups -- "$@"; }
