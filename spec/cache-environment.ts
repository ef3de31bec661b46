/** Variables that move the caches of engines and containers off the home directory. */

/** Their folders below the cache folder. */
const folders: readonly (readonly [name: string, folder: string])[] = [
  ['XDG_CACHE_HOME', ''],
  ['HF_HOME', 'huggingface'],
  ['TRITON_CACHE_DIR', 'triton'],
  ['TORCHINDUCTOR_CACHE_DIR', 'torchinductor'],
  ['VLLM_CACHE_ROOT', 'vllm'],
  ['FLASHINFER_WORKSPACE_BASE', 'flashinfer'],
  ['CUDA_CACHE_PATH', 'cuda'],
  ['NUMBA_CACHE_DIR', 'numba'],
  ['APPTAINER_CACHEDIR', 'apptainer'],
];

/** @param cache_dir absolute */
export function cacheEnvironment(cache_dir: string): Record<string, string> {
  const base = cache_dir.replace(/\/+$/, '');
  return Object.fromEntries(
    folders.map(([name, folder]) => [name, folder === '' ? base : `${base}/${folder}`]),
  );
}
