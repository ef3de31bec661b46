/**
 * Bindings to ggml: tensors and graphs, backends and buffers, and the reading of GGUF files. Signatures
 * and enum values follow ggml.h, ggml-backend.h, ggml-alloc.h, ggml-cpu.h and gguf.h of ggml 0.25.
 */
import koffi from 'koffi';
import { HpcserveError } from '../spec/errors/error.ts';
import { errorLog } from './error-log.ts';
import { findNativeLibraries, type NativeLibraries, supportedVersions } from './libraries.ts';
import { type Bound, bind, type Pointer, type SignatureTable, type StructType } from './signature.ts';

/** enum ggml_type, of the types that models and graphs have. */
export const GgmlType = {
  F32: 0,
  F16: 1,
  Q4_0: 2,
  Q4_1: 3,
  Q5_0: 6,
  Q5_1: 7,
  Q8_0: 8,
  Q2_K: 10,
  Q3_K: 11,
  Q4_K: 12,
  Q5_K: 13,
  Q6_K: 14,
  I8: 24,
  I32: 26,
  I64: 27,
  BF16: 30,
} as const;
export type GgmlType = (typeof GgmlType)[keyof typeof GgmlType];

/** enum ggml_status: success; everything else is a failure. */
export const ggmlStatusSuccess = 0;
/** The backend could not compute; other failures are of memory or of who called it off. */
export const ggmlStatusFailed = -1;

/** enum ggml_backend_buffer_usage. */
export const BufferUsage = { any: 0, weights: 1, compute: 2 } as const;

/** Rotary embedding flavours: pairs of neighbours (llama) or of halves (neox: Qwen). */
export const RopeMode = { norm: 0, neox: 2 } as const;

/**
 * Byte offsets in `struct ggml_tensor`, for graphs that are kept and whose views are moved between runs.
 * Checked at load against ggml_tensor_overhead() and a probe tensor.
 */
export const tensorLayout = {
  buffer: 8,
  ne: 16,
  nb: 48,
  src: 152,
  view_src: 232,
  view_offs: 240,
  data: 248,
  size: 336,
  /** sizeof(struct ggml_object), which precedes every tensor in a context. */
  object: 32,
} as const;

const initParams: StructType<{ mem_size: number; mem_buffer: Pointer | null; no_alloc: boolean }> = {
  koffi: koffi.struct({
    mem_size: 'size_t',
    mem_buffer: 'void *',
    no_alloc: 'bool',
  }),
};

const ggufInitParams: StructType<{ no_alloc: boolean; ctx: Pointer | null }> = {
  koffi: koffi.struct({ no_alloc: 'bool', ctx: 'void *' }),
};

const baseTable = {
  ggml_version: ['str'],
  ggml_log_set: ['void', 'ptr', 'ptr'],
  ggml_time_init: ['void'],
  ggml_tensor_overhead: ['usize'],
  ggml_graph_overhead_custom: ['usize', 'usize', 'bool'],
  ggml_init: ['ptr', initParams],
  ggml_free: ['void', 'ptr'],
  ggml_reset: ['void', 'ptr'],
  ggml_used_mem: ['usize', 'ptr'],
  ggml_type_name: ['str', 'i32'],
  ggml_type_size: ['usize', 'i32'],
  ggml_blck_size: ['i64', 'i32'],
  ggml_row_size: ['usize', 'i32', 'i64'],
  ggml_nbytes: ['usize', 'ptr'],
  ggml_get_data: ['ptr', 'ptr'],
  ggml_set_name: ['ptr', 'ptr', 'str'],
  ggml_set_input: ['void', 'ptr'],
  ggml_set_output: ['void', 'ptr'],
  ggml_new_tensor_1d: ['ptr', 'ptr', 'i32', 'i64'],
  ggml_new_tensor_2d: ['ptr', 'ptr', 'i32', 'i64', 'i64'],
  ggml_new_tensor_3d: ['ptr', 'ptr', 'i32', 'i64', 'i64', 'i64'],
  ggml_new_tensor_4d: ['ptr', 'ptr', 'i32', 'i64', 'i64', 'i64', 'i64'],
  ggml_view_1d: ['ptr', 'ptr', 'ptr', 'i64', 'usize'],
  ggml_view_2d: ['ptr', 'ptr', 'ptr', 'i64', 'i64', 'usize', 'usize'],
  ggml_view_3d: ['ptr', 'ptr', 'ptr', 'i64', 'i64', 'i64', 'usize', 'usize', 'usize'],
  ggml_view_4d: ['ptr', 'ptr', 'ptr', 'i64', 'i64', 'i64', 'i64', 'usize', 'usize', 'usize', 'usize'],
  ggml_reshape_2d: ['ptr', 'ptr', 'ptr', 'i64', 'i64'],
  ggml_reshape_3d: ['ptr', 'ptr', 'ptr', 'i64', 'i64', 'i64'],
  ggml_permute: ['ptr', 'ptr', 'ptr', 'i32', 'i32', 'i32', 'i32'],
  ggml_cont: ['ptr', 'ptr', 'ptr'],
  ggml_cont_2d: ['ptr', 'ptr', 'ptr', 'i64', 'i64'],
  ggml_cpy: ['ptr', 'ptr', 'ptr', 'ptr'],
  ggml_cast: ['ptr', 'ptr', 'ptr', 'i32'],
  ggml_add: ['ptr', 'ptr', 'ptr', 'ptr'],
  ggml_mul: ['ptr', 'ptr', 'ptr', 'ptr'],
  ggml_div: ['ptr', 'ptr', 'ptr', 'ptr'],
  ggml_scale: ['ptr', 'ptr', 'ptr', 'f32'],
  ggml_clamp: ['ptr', 'ptr', 'ptr', 'f32', 'f32'],
  ggml_sum_rows: ['ptr', 'ptr', 'ptr'],
  ggml_concat: ['ptr', 'ptr', 'ptr', 'ptr', 'i32'],
  ggml_rms_norm: ['ptr', 'ptr', 'ptr', 'f32'],
  ggml_mul_mat: ['ptr', 'ptr', 'ptr', 'ptr'],
  ggml_mul_mat_id: ['ptr', 'ptr', 'ptr', 'ptr', 'ptr'],
  ggml_get_rows: ['ptr', 'ptr', 'ptr', 'ptr'],
  ggml_set_rows: ['ptr', 'ptr', 'ptr', 'ptr', 'ptr'],
  ggml_soft_max: ['ptr', 'ptr', 'ptr'],
  ggml_soft_max_ext: ['ptr', 'ptr', 'ptr', 'ptr', 'f32', 'f32'],
  ggml_argsort_top_k: ['ptr', 'ptr', 'ptr', 'i32'],
  ggml_swiglu: ['ptr', 'ptr', 'ptr'],
  ggml_swiglu_split: ['ptr', 'ptr', 'ptr', 'ptr'],
  ggml_rope_ext: [
    'ptr',
    'ptr',
    'ptr',
    'ptr',
    'ptr',
    'i32',
    'i32',
    'i32',
    'f32',
    'f32',
    'f32',
    'f32',
    'f32',
    'f32',
  ],
  ggml_custom_4d: ['ptr', 'ptr', 'i32', 'i64', 'i64', 'i64', 'i64', 'ptr', 'i32', 'ptr', 'i32', 'ptr'],
  ggml_flash_attn_ext: ['ptr', 'ptr', 'ptr', 'ptr', 'ptr', 'ptr', 'f32', 'f32', 'f32'],
  ggml_flash_attn_ext_set_prec: ['void', 'ptr', 'i32'],
  ggml_new_graph_custom: ['ptr', 'ptr', 'usize', 'bool'],
  ggml_build_forward_expand: ['void', 'ptr', 'ptr'],
  ggml_graph_add_node: ['void', 'ptr', 'ptr'],
  ggml_graph_n_nodes: ['i32', 'ptr'],
  ggml_graph_node: ['ptr', 'ptr', 'i32'],
  ggml_op_desc: ['str', 'ptr'],
  ggml_quantize_chunk: ['usize', 'i32', 'ptr', 'ptr', 'i64', 'i64', 'i64', 'ptr'],
  ggml_quantize_requires_imatrix: ['bool', 'i32'],
  ggml_threadpool_params_init: ['void', 'ptr', 'i32'],
  ggml_gallocr_new: ['ptr', 'ptr'],
  ggml_gallocr_free: ['void', 'ptr'],
  ggml_gallocr_reserve: ['bool', 'ptr', 'ptr'],
  ggml_gallocr_alloc_graph: ['bool', 'ptr', 'ptr'],
  ggml_gallocr_get_buffer_size: ['usize', 'ptr', 'i32'],
  ggml_backend_buft_name: ['str', 'ptr'],
  ggml_backend_buft_alloc_buffer: ['ptr', 'ptr', 'usize'],
  ggml_backend_buft_get_alignment: ['usize', 'ptr'],
  ggml_backend_buft_get_max_size: ['usize', 'ptr'],
  ggml_backend_buft_get_alloc_size: ['usize', 'ptr', 'ptr'],
  ggml_backend_buft_is_host: ['bool', 'ptr'],
  ggml_backend_buffer_free: ['void', 'ptr'],
  ggml_backend_buffer_get_base: ['ptr', 'ptr'],
  ggml_backend_buffer_get_type: ['ptr', 'ptr'],
  ggml_backend_buffer_get_size: ['usize', 'ptr'],
  ggml_backend_buffer_clear: ['void', 'ptr', 'u8'],
  ggml_backend_buffer_set_usage: ['void', 'ptr', 'i32'],
  ggml_backend_cpu_buffer_type: ['ptr'],
  ggml_backend_cpu_buffer_from_ptr: ['ptr', 'ptr', 'usize'],
  ggml_backend_tensor_alloc: ['i32', 'ptr', 'ptr', 'ptr'],
  ggml_backend_view_init: ['i32', 'ptr'],
  ggml_backend_tensor_set: ['void', 'ptr', 'ptr', 'usize', 'usize'],
  ggml_backend_tensor_get: ['void', 'ptr', 'ptr', 'usize', 'usize'],
  ggml_backend_tensor_copy: ['void', 'ptr', 'ptr'],
  ggml_backend_tensor_memset: ['void', 'ptr', 'u8', 'usize', 'usize'],
  ggml_backend_tensor_set_async: ['void', 'ptr', 'ptr', 'ptr', 'usize', 'usize'],
  ggml_backend_tensor_get_async: ['void', 'ptr', 'ptr', 'ptr', 'usize', 'usize'],
  ggml_backend_synchronize: ['void', 'ptr'],
  ggml_backend_event_new: ['ptr', 'ptr'],
  ggml_backend_event_free: ['void', 'ptr'],
  ggml_backend_event_record: ['void', 'ptr', 'ptr'],
  ggml_backend_event_synchronize: ['void', 'ptr'],
  ggml_backend_graph_compute: ['i32', 'ptr', 'ptr'],
  ggml_backend_free: ['void', 'ptr'],
  ggml_backend_name: ['str', 'ptr'],
  ggml_backend_dev_init: ['ptr', 'ptr', 'str'],
  ggml_backend_dev_name: ['str', 'ptr'],
  ggml_backend_dev_description: ['str', 'ptr'],
  ggml_backend_dev_type: ['i32', 'ptr'],
  ggml_backend_dev_buffer_type: ['ptr', 'ptr'],
  ggml_backend_dev_host_buffer_type: ['ptr', 'ptr'],
  ggml_backend_dev_memory: ['void', 'ptr', 'ptr', 'ptr'],
  ggml_backend_dev_get_props: ['void', 'ptr', 'ptr'],
  ggml_backend_dev_supports_op: ['bool', 'ptr', 'ptr'],
  ggml_backend_dev_backend_reg: ['ptr', 'ptr'],
  ggml_backend_reg_dev_get: ['ptr', 'ptr', 'usize'],
  ggml_backend_reg_get_proc_address: ['ptr', 'ptr', 'str'],
  gguf_init_from_file: ['ptr', 'str', ggufInitParams],
  gguf_free: ['void', 'ptr'],
  gguf_get_version: ['u32', 'ptr'],
  gguf_get_data_offset: ['usize', 'ptr'],
  gguf_get_n_kv: ['i64', 'ptr'],
  gguf_find_key: ['i64', 'ptr', 'str'],
  gguf_get_key: ['str', 'ptr', 'i64'],
  gguf_get_kv_type: ['i32', 'ptr', 'i64'],
  gguf_get_arr_type: ['i32', 'ptr', 'i64'],
  gguf_get_arr_n: ['usize', 'ptr', 'i64'],
  gguf_get_arr_data: ['ptr', 'ptr', 'i64'],
  gguf_get_val_u8: ['u8', 'ptr', 'i64'],
  gguf_get_val_i8: ['i8', 'ptr', 'i64'],
  gguf_get_val_u16: ['u16', 'ptr', 'i64'],
  gguf_get_val_i16: ['i16', 'ptr', 'i64'],
  gguf_get_val_u32: ['u32', 'ptr', 'i64'],
  gguf_get_val_i32: ['i32', 'ptr', 'i64'],
  gguf_get_val_f32: ['f32', 'ptr', 'i64'],
  gguf_get_val_u64: ['u64', 'ptr', 'i64'],
  gguf_get_val_i64: ['i64', 'ptr', 'i64'],
  gguf_get_val_f64: ['f64', 'ptr', 'i64'],
  gguf_get_val_bool: ['bool', 'ptr', 'i64'],
  gguf_get_val_str: ['str', 'ptr', 'i64'],
  gguf_get_n_tensors: ['i64', 'ptr'],
  gguf_get_tensor_name: ['str', 'ptr', 'i64'],
  gguf_get_tensor_ne: ['ptr', 'ptr', 'i64'],
  gguf_get_tensor_type: ['i32', 'ptr', 'i64'],
  gguf_get_tensor_offset: ['usize', 'ptr', 'i64'],
  gguf_get_tensor_size: ['usize', 'ptr', 'i64'],
} as const satisfies SignatureTable;

const registryTable = {
  ggml_backend_load_all_from_path: ['void', 'str'],
  ggml_backend_reg_count: ['usize'],
  ggml_backend_reg_by_name: ['ptr', 'str'],
  ggml_backend_dev_count: ['usize'],
  ggml_backend_dev_get: ['ptr', 'usize'],
} as const satisfies SignatureTable;

/** Functions of the CPU backend: each CPU generation's library has its own, found through the registry. */
const cpuTable = {
  ggml_backend_set_n_threads: ['void', 'ptr', 'i32'],
  ggml_threadpool_new: ['ptr', 'ptr'],
  ggml_threadpool_free: ['void', 'ptr'],
  ggml_backend_cpu_set_threadpool: ['void', 'ptr', 'ptr'],
  ggml_backend_cpu_set_use_ref: ['void', 'ptr', 'bool'],
} as const satisfies SignatureTable;

export interface Ggml extends Bound<typeof baseTable>, Bound<typeof registryTable> {
  readonly libraries: NativeLibraries;
  readonly version: string;
  /** A native function that ignores its arguments, used as log callback; null where logging was asked for. */
  readonly silence: Pointer | null;
  /** Functions of the CPU backend that was chosen for this machine. */
  readonly cpu: Bound<typeof cpuTable>;
  /** The CPU device (ggml_backend_dev_t). */
  readonly cpuDevice: Pointer;
  /** Buffer types with faster kernels than plain memory (AMX, CPU_REPACK), best first, as libllama asks. */
  readonly cpuExtraBufferTypes: readonly Pointer[];
  /** ISA features that the chosen CPU library uses, for instance `AVX512_VNNI`. */
  readonly cpuFeatures: readonly string[];
}

/** `1` in this variable of the environment: the libraries write all that they log to stderr. */
export const nativeLogVariable = 'HPCSERVE_NATIVE_LOG';

const loaded = new Map<string, Ggml>();

/**
 * Loads the libraries into this process, once per folder, and checks their version and struct layout.
 * Call `probeNativeLibraries` first wherever the libraries were never tried: what is wrong with a library
 * may end the process here. Load in the main thread before worker threads do, since ggml registers its
 * backends once per process, without a lock.
 * @throws HpcserveError E_NATIVE_LIBRARY, E_NATIVE_VERSION
 */
export function loadGgml(folder?: string): Ggml {
  const libraries = findNativeLibraries(folder);
  const known = loaded.get(libraries.folder);
  if (known) return known;
  try {
    const ggml = open(libraries);
    loaded.set(libraries.folder, ggml);
    return ggml;
  } catch (error) {
    if (error instanceof HpcserveError) throw error;
    throw new HpcserveError('E_NATIVE_LIBRARY', {
      what: `the libraries in ${libraries.folder} do not load`,
      because: error instanceof Error ? error.message : String(error),
      cause: error,
    });
  }
}

function open(libraries: NativeLibraries): Ggml {
  const baseLibrary = koffi.load(libraries.ggml_base, { global: true });
  const base = bind(baseLibrary, baseTable);
  const version = base.ggml_version() ?? 'unknown';
  if (!version.startsWith(`${supportedVersions.ggml}.`))
    throw new HpcserveError('E_NATIVE_VERSION', {
      what: `${libraries.ggml_base} is ggml ${version}, and the bindings are for ${supportedVersions.ggml}`,
    });
  checkTensorLayout(base);
  // The library's own log goes to stderr unless it has a native function to go to, a harmless one for silence: a
  // JavaScript callback would be called from compute threads, which deadlocks with a waiting event loop.
  const silence =
    process.env[nativeLogVariable] === '1' ? null : (baseLibrary.symbol('ggml_time_init') as Pointer);
  if (silence) base.ggml_log_set(errorLog() ?? silence, null);
  const registry = bind(koffi.load(libraries.ggml, { global: true }), registryTable);
  if (Number(registry.ggml_backend_reg_count()) === 0)
    registry.ggml_backend_load_all_from_path(libraries.folder);
  const cpuRegistry = registry.ggml_backend_reg_by_name('CPU');
  const cpuDevice = cpuRegistry ? base.ggml_backend_reg_dev_get(cpuRegistry, 0) : null;
  if (!cpuRegistry || !cpuDevice)
    throw new HpcserveError('E_NATIVE_LIBRARY', {
      what: `no CPU backend in ${libraries.folder} runs on this machine`,
      because: 'every libggml-cpu-* library was refused: missing symbol versions, or too old a CPU',
    });
  return {
    ...base,
    ...registry,
    libraries,
    version,
    silence,
    cpu: bindCpu(base, cpuRegistry),
    cpuDevice,
    cpuExtraBufferTypes: extraBufferTypes(base, cpuRegistry, cpuDevice),
    cpuFeatures: features(base, cpuRegistry),
  };
}

type Base = Bound<typeof baseTable>;

function procAddress(base: Base, registry: Pointer, name: string): Pointer {
  const address = base.ggml_backend_reg_get_proc_address(registry, name);
  if (!address)
    throw new HpcserveError('E_NATIVE_VERSION', { what: `the CPU backend does not offer ${name}` });
  return address;
}

function bindCpu(base: Base, registry: Pointer): Bound<typeof cpuTable> {
  const names: Record<string, string> = { i32: 'int', ptr: 'void *', void: 'void', bool: 'bool' };
  const entries = Object.entries(cpuTable).map(([name, [result, ...args]]) => {
    const type = koffi.proto(
      names[result]!,
      args.map((argument) => names[argument]!),
    );
    return [name, koffi.decode(procAddress(base, registry, name), type)];
  });
  return Object.fromEntries(entries);
}

function extraBufferTypes(base: Base, registry: Pointer, device: Pointer): Pointer[] {
  const address = base.ggml_backend_reg_get_proc_address(registry, 'ggml_backend_dev_get_extra_bufts');
  if (!address) return [];
  const list = koffi.call(address, koffi.proto('void *', ['void *']), device) as Pointer | null;
  const found: Pointer[] = [];
  for (let index = 0; list; index++) {
    const type = koffi.decode(list, index * 8, 'void *') as Pointer | null;
    if (!type) break;
    found.push(type);
  }
  return found;
}

function features(base: Base, registry: Pointer): string[] {
  const address = base.ggml_backend_reg_get_proc_address(registry, 'ggml_backend_get_features');
  if (!address) return [];
  const list = koffi.call(address, koffi.proto('void *', ['void *']), registry) as Pointer | null;
  const found: string[] = [];
  for (let index = 0; list; index++) {
    const name = koffi.decode(list, index * 16, 'str') as string | null;
    if (!name) break;
    found.push(name);
  }
  return found;
}

/** Compares the offsets of `tensorLayout` with a tensor whose fields are known. */
function checkTensorLayout(base: Base): void {
  const overhead = Number(base.ggml_tensor_overhead());
  const context = base.ggml_init({ mem_size: 4 * overhead, mem_buffer: null, no_alloc: true })!;
  try {
    const whole = base.ggml_new_tensor_3d(context, GgmlType.F16, 96, 5, 7)!;
    const view = base.ggml_view_1d(context, whole, 32, 192)!;
    const read = (tensor: Pointer, offset: number) => Number(koffi.decode(tensor, offset, 'int64_t'));
    const right =
      overhead === tensorLayout.size + tensorLayout.object &&
      read(whole, tensorLayout.ne) === 96 &&
      read(whole, tensorLayout.ne + 16) === 7 &&
      read(whole, tensorLayout.nb + 16) === 96 * 2 * 5 &&
      read(view, tensorLayout.view_offs) === 192;
    if (!right)
      throw new HpcserveError('E_NATIVE_VERSION', {
        what: 'struct ggml_tensor is laid out differently than the bindings expect',
        because: `a tensor takes ${overhead} bytes, expected ${tensorLayout.size + tensorLayout.object}`,
      });
  } finally {
    base.ggml_free(context);
  }
}

/** A device that ggml computes on, as its library names it. */
export interface GgmlDevice {
  /** `CPU`, `Vulkan0`, `CUDA0`: unique in a process. */
  name: string;
  description: string;
  /** ggml_backend_dev_t. */
  pointer: Pointer;
}

/** Every device of the libraries that are loaded, the CPU among them. */
export function ggmlDevices(ggml: Ggml): GgmlDevice[] {
  return Array.from({ length: Number(ggml.ggml_backend_dev_count()) }, (_, index) => {
    const pointer = ggml.ggml_backend_dev_get(index)!;
    const name = ggml.ggml_backend_dev_name(pointer) ?? '';
    return { name, description: ggml.ggml_backend_dev_description(pointer) ?? name, pointer };
  });
}

/** What the driver of a device says of its memory, bytes. */
export function deviceMemory(ggml: Ggml, device: Pointer): { free_bytes: number; total_bytes: number } {
  const [free, total] = [new BigUint64Array(1), new BigUint64Array(1)];
  ggml.ggml_backend_dev_memory(device, free, total);
  return { free_bytes: Number(free[0]), total_bytes: Number(total[0]) };
}

/** What a backend says that a device does by itself: struct ggml_backend_dev_caps. */
export interface DeviceCapabilities {
  /** Copies and graphs go on while the host does something else. */
  async: boolean;
  /** Page-locked memory of the host. */
  host_buffer: boolean;
  /** Marks in what was asked for, which can be waited for. */
  events: boolean;
}

/** Bytes of struct ggml_backend_dev_props before its caps: two strings, two sizes, an enum, a string. */
const capabilities_offset = 48;

export function deviceCapabilities(ggml: Ggml, device: Pointer): DeviceCapabilities {
  const properties = new Uint8Array(capabilities_offset + 16);
  ggml.ggml_backend_dev_get_props(device, properties);
  const [async, host_buffer, , events] = properties.subarray(capabilities_offset);
  return { async: async === 1, host_buffer: host_buffer === 1, events: events === 1 };
}

/**
 * Places a tensor in memory that is exactly as large as it is. A backend is not told of it, as by
 * `ggml_backend_tensor_alloc`: CUDA's writes zeros behind a quantized tensor whose rows are no multiple of 512.
 */
export function placeTensor(tensor: Pointer, buffer: Pointer, address: Pointer): void {
  koffi.encode(tensor, tensorLayout.buffer, 'void *', buffer);
  koffi.encode(tensor, tensorLayout.data, 'void *', address);
}

/** The C string or bytes at an address, as memory that is shared, not copied. */
export function memoryAt(address: Pointer, bytes: number): Uint8Array {
  return new Uint8Array(koffi.view(address, bytes));
}

/** The address of a typed array's memory; valid while the array is alive. */
export function addressOf(array: ArrayBufferView): Pointer {
  return koffi.address(array);
}
