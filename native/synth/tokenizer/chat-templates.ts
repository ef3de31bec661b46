/**
 * Chat templates (Jinja) in the styles of the two families: system message, tools, tool calls and tool
 * results, text given as a string or as parts. Written for this project.
 */

const textMacro = String.raw`
{%- macro text_of(content) -%}
  {%- if content is string -%}
    {{- content -}}
  {%- elif content -%}
    {%- for part in content -%}
      {%- if part.type == 'text' -%}{{- part.text -}}{%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- set system = namespace(text='') -%}
{%- for message in messages -%}
  {%- if message.role == 'system' or message.role == 'developer' -%}
    {%- set system.text = system.text + ('\n\n' if system.text else '') + text_of(message.content) -%}
  {%- endif -%}
{%- endfor -%}
`.trim();

export const llamaChatTemplate = String.raw`
${textMacro}
{{- bos_token -}}
{%- if system.text or tools -%}
  {{- '<|start_header_id|>system<|end_header_id|>\n\n' + system.text -}}
  {%- if tools -%}
    {{- ('\n\n' if system.text else '') + 'These functions can be called:\n' -}}
    {%- for tool in tools -%}{{- (tool | tojson) + '\n' -}}{%- endfor -%}
    {{- '\nTo call one, answer with nothing but a JSON object: {"name": the function, "parameters": its arguments}.' -}}
  {%- endif -%}
  {{- '<|eot_id|>' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}
    {{- '<|start_header_id|>user<|end_header_id|>\n\n' + text_of(message.content) + '<|eot_id|>' -}}
  {%- elif message.role == 'assistant' -%}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' + text_of(message.content) -}}
    {%- for call in message.tool_calls or [] -%}
      {%- set arguments = call.function.arguments -%}
      {{- '{"name": ' + (call.function.name | tojson) + ', "parameters": ' -}}
      {{- (arguments if arguments is string else (arguments | tojson)) + '}' -}}
    {%- endfor -%}
    {{- '<|eot_id|>' -}}
  {%- elif message.role == 'tool' -%}
    {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + text_of(message.content) + '<|eot_id|>' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
{%- endif -%}
`.trim();

export const qwenChatTemplate = String.raw`
${textMacro}
{%- if system.text or tools -%}
  {{- '<|im_start|>system\n' + system.text -}}
  {%- if tools -%}
    {{- ('\n\n' if system.text else '') + '# Tools\n\nThese functions can be called:\n<tools>\n' -}}
    {%- for tool in tools -%}{{- (tool | tojson) + '\n' -}}{%- endfor -%}
    {{- '</tools>\n\nTo call one, write its name and arguments as JSON between the tags:\n<tool_call>\n' -}}
    {{- '{"name": the function, "arguments": its arguments}\n</tool_call>' -}}
  {%- endif -%}
  {{- '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}
    {{- '<|im_start|>user\n' + text_of(message.content) + '<|im_end|>\n' -}}
  {%- elif message.role == 'assistant' -%}
    {{- '<|im_start|>assistant\n' + text_of(message.content) -}}
    {%- for call in message.tool_calls or [] -%}
      {%- set arguments = call.function.arguments -%}
      {{- ('\n' if message.content or not loop.first else '') + '<tool_call>\n{"name": ' -}}
      {{- (call.function.name | tojson) + ', "arguments": ' -}}
      {{- (arguments if arguments is string else (arguments | tojson)) + '}\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}}
  {%- elif message.role == 'tool' -%}
    {{- '<|im_start|>user\n<tool_response>\n' + text_of(message.content) + '\n</tool_response><|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\n' -}}
{%- endif -%}
`.trim();
