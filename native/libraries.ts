/**
 * Where the ggml and libllama libraries are. They come from the platform package of node-llama-cpp, or
 * from a folder that a site chose: its own build, for another glibc, another GPU, another architecture.
 */
import { existsSync, readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { HpcserveError } from '../spec/errors/error.ts';

/** The versions whose signatures and struct layouts these bindings were written for. */
export const supportedVersions = { ggml: '0.25', libllama: '0.5' } as const;

/** Environment variable that names a folder with a site's own build. */
export const nativeFolderVariable = 'HPCSERVE_NATIVE_LIBRARIES';

export interface NativeLibraries {
  folder: string;
  /** Where the folder was taken from, for messages. */
  source: 'option' | 'environment' | 'package';
  ggml_base: string;
  ggml: string;
  llama: string;
}

/**
 * Finds the library files without loading them.
 * @param folder a site's choice; absent: the environment variable, else the npm package of this platform.
 * @throws HpcserveError E_NATIVE_LIBRARY where a library is missing, naming folder and files.
 */
export function findNativeLibraries(folder?: string): NativeLibraries {
  const chosen = chooseFolder(folder);
  const files = existsSync(chosen.folder) ? readdirSync(chosen.folder) : [];
  const find = (pattern: RegExp, wanted: string): string => {
    const file = files.filter((name) => pattern.test(name)).sort()[0];
    if (file === undefined)
      throw new HpcserveError('E_NATIVE_LIBRARY', {
        what: `${wanted} is not in ${chosen.folder}`,
        because: `the folder was taken from the ${chosen.source} and ${
          files.length === 0 ? 'is missing or empty' : `contains ${files.slice(0, 12).join(', ')}`
        }`,
      });
    return join(chosen.folder, file);
  };
  return {
    ...chosen,
    ggml_base: find(/^libggml-base\.(so|dylib)/, 'libggml-base'),
    ggml: find(versioned('ggml'), 'libggml'),
    llama: find(versioned('llama'), 'libllama'),
  };
}

/** `libggml.so`, `libggml.v0.5.0.so`, and where there is a GPU's backend as well, `libggml.vulkan.v0.5.0.so`. */
function versioned(name: string): RegExp {
  return new RegExp(`^lib${name}\\.(?:[a-z]+\\.)?(?:v[\\d.]+)?(?:so|dylib)`);
}

function chooseFolder(option: string | undefined): Pick<NativeLibraries, 'folder' | 'source'> {
  if (option !== undefined) return { folder: option, source: 'option' };
  const environment = process.env[nativeFolderVariable];
  if (environment) return { folder: environment, source: 'environment' };
  const platform = `${process.platform}-${process.arch}`;
  const name = `@node-llama-cpp/${platform}`;
  try {
    const entry = createRequire(import.meta.url).resolve(name);
    return { folder: join(dirname(entry), '..', 'bins', platform), source: 'package' };
  } catch (error) {
    throw new HpcserveError('E_NATIVE_LIBRARY', {
      what: `no ggml libraries for ${platform}`,
      because: `the package ${name} is not installed`,
      try: `npm install, or set ${nativeFolderVariable} to a folder with libggml-base, libggml and libllama`,
      cause: error,
    });
  }
}
