/** A device with memory of its own on every machine: ggml's Vulkan backend on Mesa's driver for the CPU. */
import type { Backend } from '../../../../agent/backend/backend.ts';
import { deviceBackend } from '../../../../agent/backend/device/device-backend.ts';
import { type Ggml, loadGgml } from '../../../../native/ggml.ts';
import { nativeFolderVariable } from '../../../../native/libraries.ts';
import { vulkanLibraries } from '../../../engines/environments.ts';

const libraries = vulkanLibraries();

/** Behind the title of each suite. */
export const lacking: string = libraries.lacking;

export const isThere: boolean = libraries.found !== undefined;

/** ggml leaves devices out that compute on the CPU, unless they are named. */
if (libraries.found !== undefined) {
  process.env.GGML_VK_VISIBLE_DEVICES = '0';
  process.env[nativeFolderVariable] = libraries.found;
}

export function vulkan(): { ggml: Ggml; backend: Backend } {
  const ggml = loadGgml();
  return { ggml, backend: deviceBackend(ggml, 'Vulkan0') };
}
