# Kills the processes of a control plane and removes its folder ($1) when standard
# input closes: either the control plane was stopped, or the process that started
# it has ended, in whatever way.
trap '' HUP INT TERM
while read -r _; do :; done

# From here on, no wrapper starts its program.
: >"$1/closing" || exit 1

# Our processes name our folder in their arguments. A process that does not has the
# ID of one of ours that ended long ago: leave it alone.
ours() {
	if [ -d /proc/self ]; then
		tr '\0' ' ' <"/proc/$1/cmdline"
	else
		ps -o args= -p "$1"
	fi 2>/dev/null | grep -qF -- "$2"
}

for file in "$1"/pids/*; do
	read -r pid <"$file" || continue
	ours "$pid" "$1" && kill -KILL "-$pid" && killed="$killed $pid"
done 2>/dev/null

for pid in $killed; do
	tries=0
	while [ "$tries" -lt 50 ] && ours "$pid" "$1"; do
		sleep 0.1
		tries=$((tries + 1))
	done
done
rm -rf -- "$1"
