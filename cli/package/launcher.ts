/**
 * `bin/hpcserve` of the archive: finds its own folder through symbolic links with nothing but the shell
 * and, for links, readlink at its usual places; PATH may be empty.
 */
export function launcherScript(): string {
  return `#!/bin/sh
# hpcserve, from the folder it was unpacked into; nothing outside this folder is needed.
self=$0
while [ -h "$self" ]; do
  for readlink in /usr/bin/readlink /bin/readlink readlink; do
    if target=$("$readlink" "$self" 2>/dev/null); then break; fi
  done
  case $target in
    /*) self=$target ;;
    *) self=\${self%/*}/$target ;;
  esac
done
case $self in
  */*) folder=\${self%/*} ;;
  *) folder=. ;;
esac
exec "$folder/node" "$folder/../cli/hpcserve.mjs" "$@"
`;
}
