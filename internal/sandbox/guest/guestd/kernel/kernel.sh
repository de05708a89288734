# The first input of the bash kernel. The bash is interactive, because only then
# does it continue with the next command after an interrupt, but should behave
# like one without a terminal. Events go to the named pipe out.
PS1= PS2= PS4='+ '
unset HISTFILE MAILCHECK PROMPT_COMMAND
set +o history +H
shopt -u progcomp
BASH_ARGV0=bash
exec {__engi_events}>"$ENGI_KERNEL/out"
unset ENGI_KERNEL
declare -A __engi_saved=()
__engi_set() {
	if [[ ! -v __engi_saved[$1] ]]; then
		if [[ -v $1 ]]; then __engi_saved[$1]="$(declare -p "$1")"; else __engi_saved[$1]=; fi
	fi
	export "$1=$2"
}
__engi_end() {
	local name
	for name in "${!__engi_saved[@]}"; do
		unset -v "$name"
		[[ -z ${__engi_saved[$name]} ]] || eval "${__engi_saved[$name]/declare /declare -g }"
	done
	__engi_saved=()
	printf '{"event":"end","id":%d,"status":%d}\n' "$1" "$2" >&"$__engi_events"
}
echo '{"event":"ready"}' >&"$__engi_events"
