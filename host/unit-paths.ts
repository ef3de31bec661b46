/** Which files a unit of a launch needs, as its engine will ask for them: what a container has to be given. */
import { existsSync, lstatSync, readdirSync, readlinkSync, realpathSync, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import type { UnitSpec } from '../spec/launch.ts';

/**
 * Folders and files, each by the name by which it is asked for, none inside another: the model; where its files really
 * are, for a snapshot of a Hugging Face cache is a folder of links; the chat template; paths in `engine_args` and
 * `command` that exist here (LoRA adapters, tool parsers). A model that this host does not see is named all the same.
 */
export function pathsOfUnit({ model_path, model }: UnitSpec): string[] {
  const [, ...words] = model.command ?? [''];
  const named = [
    ...(model.chat_template === undefined ? [] : [model.chat_template]),
    ...namedPaths([...words, ...model.engine_args]),
  ];
  const found = new Set([isFolder(model_path) ? model_path : dirname(model_path), ...named]);
  for (const path of [model_path, ...named]) for (const folder of linkedFolders(path)) found.add(folder);
  return outermost([...found]);
}

/**
 * Links of a model, or the model itself, that lead nowhere: files of a cache whose blobs this host does not see, or
 * whose download broke off.
 */
export function brokenLinks(path: string): { link: string; target: string }[] {
  return linksAt(path)
    .filter((link) => !existsSync(link))
    .map((link) => ({ link, target: resolve(dirname(link), readlinkSync(link)) }));
}

/** A container has these itself; what a node has there would take their place. */
const ofSystem = /^\/(?:bin|boot|dev|etc|lib\w*|opt|proc|root|run|sbin|sys|usr|var\/lib|var\/run)(?:\/|$)/;

/** Absolute paths in words such as `--lora-modules`, `sql=/adapters/sql`, `{"path":"/adapters/sql"}`. */
function namedPaths(words: readonly string[]): string[] {
  return words
    .flatMap((word) => word.match(/(?<![^\s"'=:,[{(])\/[^\s"',;:=\]})]+/g) ?? [])
    .map((path) => path.replace(/(?<=.)\/+$/, ''))
    .filter((path) => dirname(path) !== '/' && !ofSystem.test(path) && existsSync(path));
}

/** Folders of what links lead to, each step of the way, as a program that follows them comes by. */
function linkedFolders(path: string): string[] {
  const folders = new Set<string>();
  for (const link of linksAt(path)) {
    if (!existsSync(link)) continue;
    for (let at = link; isLink(at); ) {
      at = resolve(dirname(at), readlinkSync(at));
      folders.add(folderOf(at));
    }
    folders.add(folderOf(realpathSync(link)));
  }
  return [...folders].filter((folder) => existsSync(folder) && !ofSystem.test(folder));
}

/** The path itself and, of a folder, what is in it, as far as they are links. */
function linksAt(path: string): string[] {
  const own = isLink(path) ? [path] : [];
  if (!isFolder(path)) return own;
  const inside = readdirSync(path, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isSymbolicLink())
    .map((entry) => join(entry.parentPath ?? entry.path, entry.name));
  return [...own, ...inside];
}

/** Without those that come along with another one. */
function outermost(paths: readonly string[]): string[] {
  return paths.filter(
    (path) => !paths.some((other) => other !== path && path.startsWith(`${other}/`) && liesIn(path, other)),
  );
}

/** Whether the way from `folder` to `path` is made of folders, not of links that lead out of it. */
function liesIn(path: string, folder: string): boolean {
  if (!existsSync(path) || !existsSync(folder)) return true;
  return realpathSync(path) === join(realpathSync(folder), path.slice(folder.length));
}

/** Of a file or a link, the folder that it is in. */
function folderOf(path: string): string {
  return isFolder(path) && !isLink(path) ? path : dirname(path);
}

function isLink(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false })?.isSymbolicLink() ?? false;
}

function isFolder(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false;
}
