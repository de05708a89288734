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

# enter goes on as the server.
enter() { exec setpriv --reuid="$user" --regid="$user" --init-groups -- "$@"; }
