# Sourced through BASH_ENV by a bash that waits for its script.
exec {ENGI_GO}<"$ENGI_PRELOAD/go"
echo r >"$ENGI_PRELOAD/ready"
IFS= read -r -d '' ENGI_CODE <&$ENGI_GO || ENGI_CODE='exit 1'
exec {ENGI_GO}<&-
unset BASH_ENV ENGI_PRELOAD ENGI_GO
eval "unset ENGI_CODE; $ENGI_CODE"
SECONDS=0
