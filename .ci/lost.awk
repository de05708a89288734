# Reads the events of gotestsum (--jsonfile) and prints each package that failed
# although none of its tests did, and each that ended while a test ran. gotestsum
# repeats neither, and takes them for passed. It also prints each data race: a test
# that passes the second time has it still.
function field(name,  s) {
	if (!match($0, "\"" name "\":\"[^\"]*\"")) return ""
	s = substr($0, RSTART, RLENGTH)
	sub("^\"" name "\":\"", "", s)
	sub("\"$", "", s)
	return s
}
{
	action = field("Action")
	if (action == "output" && /WARNING: DATA RACE/) print field("Package") ": data race"
	if (action !~ /^(run|pass|fail|skip)$/) next
	p = field("Package")
	t = field("Test")
}
t != "" && action == "run" { open[p, t] = 1; next }
t != "" { delete open[p, t]; if (action == "fail") failed[p]++; next }
action == "fail" {
	if (!failed[p]) print p ": failed outside of its tests"
	for (k in open) { split(k, w, SUBSEP); if (w[1] == p) print p ": ended while " w[2] " ran" }
}
{
	failed[p] = 0
	for (k in open) { split(k, w, SUBSEP); if (w[1] == p) delete open[k] }
}
