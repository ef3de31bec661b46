/** Says what a file looks like that should have been a model: the usual accidents of copying and downloading. */

/**
 * @param head the first bytes of the file, 512 or so
 * @returns a noun phrase, and what to do about it where that is known; undefined for unknown bytes
 */
export function describeFileKind(head: Uint8Array): { looks_like: string; try?: string } | undefined {
  const bytes = Buffer.from(head.buffer, head.byteOffset, head.byteLength);
  const start = bytes.toString('latin1');
  const begins = (...values: number[]): boolean => values.every((value, index) => bytes[index] === value);
  if (start.startsWith('version https://git-lfs.github.com/spec/')) {
    const size = /^size (\d+)$/m.exec(start)?.[1];
    return {
      looks_like: `a git-lfs pointer${size ? ` to a file of ${size} bytes` : ''}, not the file itself`,
      try: 'run `git lfs pull` in the clone, or fetch it with `hpcserve model pull`',
    };
  }
  if (/^\s*(<!doctype html|<html)/i.test(start)) {
    return {
      looks_like: 'an HTML page, probably an error or login page saved by a download',
      try: 'download the file again; use its direct (resolve) address and, for gated models, a token',
    };
  }
  if (/^\s*<\?xml/i.test(start))
    return { looks_like: 'an XML document, probably an error of a storage service' };
  if (start.startsWith('GGUF')) return { looks_like: 'a GGUF file' };
  if (/^(ggml|ggjt|ggla|lmgg|tjgg|fmgg)/.test(start)) {
    return {
      looks_like: 'a model file of llama.cpp from before GGUF',
      try: 'convert the original model to GGUF',
    };
  }
  if (isSafetensors(bytes)) {
    return {
      looks_like: 'a safetensors file',
      try: 'give its folder (with config.json) instead of the file',
    };
  }
  if (begins(0x50, 0x4b, 0x03, 0x04)) {
    return {
      looks_like: 'a zip archive, or a PyTorch checkpoint (.bin, .pt), which is one',
      try: 'convert it to GGUF or safetensors, or unpack it',
    };
  }
  if (begins(0x1f, 0x8b)) return { looks_like: 'a gzip archive', try: 'unpack it first (gunzip, tar xzf)' };
  if (begins(0x28, 0xb5, 0x2f, 0xfd))
    return { looks_like: 'a zstd archive', try: 'unpack it first (zstd -d)' };
  if (begins(0xfd, 0x37, 0x7a, 0x58, 0x5a))
    return { looks_like: 'an xz archive', try: 'unpack it first (unxz)' };
  if (start.slice(257, 262) === 'ustar')
    return { looks_like: 'a tar archive', try: 'unpack it first (tar xf)' };
  if (begins(0x80) && bytes[1] !== undefined && bytes[1] >= 2 && bytes[1] <= 5) {
    return {
      looks_like: 'a Python pickle (an old PyTorch checkpoint)',
      try: 'convert it to GGUF or safetensors',
    };
  }
  if (begins(0x7f, 0x45, 0x4c, 0x46)) return { looks_like: 'a program or library (ELF)' };
  if (start.startsWith('\x89HDF')) return { looks_like: 'an HDF5 file (Keras)' };
  if (/^\s*[{[]/.test(start) && isText(bytes)) return { looks_like: 'a JSON document' };
  if (bytes.every((byte) => byte === 0)) {
    return {
      looks_like: 'zeros: space that was reserved and never written',
      try: 'download or copy it again',
    };
  }
  if (isText(bytes)) return { looks_like: `text beginning with ${JSON.stringify(start.slice(0, 40))}` };
  return undefined;
}

/** Eight bytes of length, then a JSON object. */
function isSafetensors(bytes: Buffer): boolean {
  if (bytes.length < 10) return false;
  const length = bytes.readBigUInt64LE(0);
  return (
    length >= 2n && length <= 100_000_000n && bytes[8] === 0x7b && (bytes[9] === 0x22 || bytes[9] === 0x7d)
  );
}

function isText(bytes: Buffer): boolean {
  return bytes.every((byte) => byte >= 0x20 || byte === 0x09 || byte === 0x0a || byte === 0x0d);
}
